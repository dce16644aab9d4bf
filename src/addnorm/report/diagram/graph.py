"""From a record to a graph that one can draw: adds, scales, norms, sub-layers, mixtures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from addnorm.norms.base import Norm
from addnorm.report.diagram.placeholders import PlaceholderSublayer
from addnorm.report.diagram.recorder import Op, Value
from addnorm.report.diagram.symbols import (
    MINUS,
    OVER,
    PLUS,
    TIMES,
    format_factor,
    op_title,
    parameter_symbol,
)

ROUND_KINDS = ("add", "mul")
"""Kinds that are drawn as circles and entered from their sides."""

_PASSTHROUGH_OPS = frozenset(
    {
        "view", "view_as", "reshape", "to", "float", "double", "half", "type_as", "contiguous",
        "unsqueeze", "squeeze", "expand", "expand_as", "flatten", "unflatten", "transpose",
        "permute", "movedim", "alias", "clone", "dropout", "repeat", "repeat_interleave",
        "broadcast_to", "get",
    }
)  # fmt: skip
"""Functions after which the same numbers go on: edges, not nodes."""

_ARITHMETIC = {
    "add": "add", "radd": "add", "iadd": "add", "sub": "sub", "isub": "sub", "subtract": "sub",
    "rsub": "rsub", "mul": "mul", "rmul": "mul", "imul": "mul", "multiply": "mul", "div": "div",
    "truediv": "div", "itruediv": "div", "divide": "div", "true_divide": "div", "rdiv": "rdiv",
    "rtruediv": "rdiv", "neg": "neg", "detach": "detach",
}  # fmt: skip


_CLAMP_OPS = ("clamp", "clamp_min", "clip", "maximum", "gt", "ne")
"""What is done to a length before something is divided by it."""

UNIT_NORM_LABEL, CONSTANT_LABEL = "Unit norm", "c"


@dataclass(frozen=True)
class Edge:
    """One input of a node."""

    source: int
    minus: bool = False
    """Whether it is taken away where it arrives."""
    wide: bool = False
    """Whether several streams travel on it side by side."""


@dataclass(frozen=True)
class Node:
    """One thing in the picture."""

    id: int
    kind: str
    """input output norm sublayer add mul scale op mix."""
    label: str
    note: str = ""
    """A second, smaller line."""
    inputs: tuple[Edge, ...] = ()
    layer: int = -1
    """Which of the drawn layers it is part of; -1 before the first, -2 after the last."""
    phase: str = ""
    slot: int | None = None
    """Position in the state of what it makes, where it makes an entry of the state."""
    learned: bool = False
    """Whether a scale or a mixture has parameters."""
    neutral: bool = False
    """Whether a scale is a constant that changes nothing."""
    side: str = ""
    """What a sub-layer reads besides its branch."""


Graph = dict[int, Node]


@dataclass(frozen=True)
class Constant:
    """A value that does not depend on the input."""

    text: str
    learned: bool
    number: float | None = None


class GraphBuilder:
    """Turns recorded operations, one after the other, into nodes."""

    def __init__(self, constants: Mapping[float, str], dims: int) -> None:
        self.nodes: Graph = {}
        self._constant_names = constants
        self._dims = dims
        self._node_ids: dict[Value, int] = {}
        self._constants: dict[Value, Constant] = {}
        self._ignored: set[Value] = set()
        self._stacked: dict[Value, Op] = {}
        self._vector_norms: dict[
            Value, Value
        ] = {}  # what is made of the length of a vector, and which

    def add_source(self, value: Value, label: str, layer: int = -1, slot: int | None = None) -> int:
        """A place where something enters the picture."""
        self._node_ids[value] = self._add_node("input", label, (), layer=layer, slot=slot)
        return self._node_ids[value]

    def add_context(self, values: Iterable[Value]) -> None:
        """What sub-layers read besides their branch."""
        self._ignored.update(values)

    def add_alias(self, value: Value, other: Value) -> None:
        """From here on `value` is what `other` is."""
        if other in self._node_ids:
            self._node_ids[value] = self._node_ids[other]
        else:
            self._constants[value] = self._get_constant(other)

    def set_slot(self, value: Value, position: int) -> None:
        """The value is that entry of the state."""
        node = self.nodes.get(self._node_ids.get(value, -1))
        if node is not None and node.slot is None:
            self.nodes[node.id] = replace(node, slot=position)

    def add_sink(self, value: Value, label: str, layer: int) -> int:
        """A place where something leaves the picture."""
        return self._add_node("output", label, (self._make_edge(value),), layer=layer)

    def find_node(self, value: Value) -> int | None:
        """The node that makes a value, if it depends on the input."""
        return self._node_ids.get(value)

    def add_op(self, op: Op, layer: int) -> None:
        """Understand one operation."""
        varying = [value for value in dict.fromkeys(op.ins) if value in self._node_ids]
        if not varying:
            self._fold_constants(op)
        elif isinstance(op.func, Norm):
            self._add_op_node(op, layer, "norm", "Norm", varying)
        elif isinstance(op.func, PlaceholderSublayer):
            side = ", ".join(sorted(v.name for v in op.ins if v in self._ignored))
            node = self._add_op_node(op, layer, "sublayer", op.func.title, varying)
            self.nodes[node] = replace(self.nodes[node], note=op.func.note, side=side)
        elif _name(op) in _PASSTHROUGH_OPS and len(op.outs) == 1 and len(varying) == 1:
            self._node_ids[op.outs[0]] = self._node_ids[varying[0]]
        elif self._try_unit_norm(op, layer, varying):
            return
        elif _name(op) in _ARITHMETIC:
            self._add_arithmetic(op, layer, varying)
        elif _name(op) == "sum" and _axis(op) == _axis(self._stacked.get(varying[0])):
            self._add_op_node(op, layer, "add", "+", self._stacked[varying[0]].ins)
        else:
            self._add_opaque(op, layer, varying)

    def _try_unit_norm(self, op: Op, layer: int, varying: list[Value]) -> bool:
        """Whether the operation finishes x / |x|, which is a norm without a module."""
        lengths = [value for value in varying if value in self._vector_norms]
        others = [value for value in varying if value not in self._vector_norms]
        if _name(op).endswith("vector_norm"):
            self._vector_norms[op.outs[0]] = varying[0]
        elif _name(op) in _CLAMP_OPS and lengths and not others:
            self._vector_norms |= dict.fromkeys(op.outs, self._vector_norms[lengths[0]])
        elif _name(op) in ("div", "truediv") and others == [self._vector_norms.get(op.args[1])]:
            self._add_op_node(op, layer, "norm", UNIT_NORM_LABEL, others)
            return True
        elif (
            _name(op) == "where"
            and lengths
            and [self._label(v) for v in others] == [UNIT_NORM_LABEL]
        ):
            self.add_alias(op.outs[0], others[0])  # what becomes of the zero vector
            return True
        return False

    def _add_arithmetic(self, op: Op, layer: int, varying: list[Value]) -> None:
        what, (first, *rest) = _ARITHMETIC[_name(op)], op.args
        both = bool(rest) and first in self._node_ids and rest[0] in self._node_ids
        if what == "detach":
            self._add_op_node(op, layer, "scale", "stop gradient", varying)
        elif what == "neg":
            self._add_op_node(op, layer, "scale", MINUS, varying)
        elif what in ("rsub", "rdiv") or op.kwargs:
            self._add_opaque(op, layer, varying)
        elif both and what in ("add", "sub"):
            node = self._add_op_node(op, layer, "add", "+", [first, rest[0]])
            if what == "sub":
                left, right = self.nodes[node].inputs
                minus = replace(right, minus=True)
                self.nodes[node] = replace(self.nodes[node], inputs=(left, minus))
        elif both and what == "mul":
            self._add_op_node(op, layer, "mul", TIMES, [first, rest[0]])
        elif len(varying) == 1 and op.outs[0].shape == varying[0].shape:
            self._add_scale(
                op, layer, what, varying[0], self._other_operand(first, rest[0], varying[0])
            )
        else:
            self._add_opaque(op, layer, varying)

    def _add_scale(
        self, op: Op, layer: int, operation: str, value: Value, constant: Constant
    ) -> None:
        neutral = constant.number == (0 if operation in ("add", "sub") else 1)
        sign = {"mul": TIMES, "div": OVER, "add": PLUS, "sub": MINUS}[operation]
        if operation in ("sub", "div") and value is not op.args[0]:
            self._add_opaque(op, layer, [value])
            return
        label = (
            constant.text
            if "=" in constant.text and operation == "mul"
            else f"{sign} {constant.text}"
        )
        node = self._add_op_node(op, layer, "scale", label, [value])
        self.nodes[node] = replace(self.nodes[node], learned=constant.learned, neutral=neutral)

    def _add_opaque(self, op: Op, layer: int, varying: list[Value]) -> None:
        used = [
            self._get_constant(v)
            for v in op.ins
            if v not in self._node_ids and v not in self._ignored
        ]
        names = dict.fromkeys(c.text for c in used if c.learned)
        if _name(op) == "stack" and not used:
            self._stacked[op.outs[0]] = op
        node = self._add_op_node(op, layer, "op", op_title(_name(op)), varying)
        self.nodes[node] = replace(
            self.nodes[node], note=", ".join(names), learned=any(c.learned for c in used)
        )

    def _add_op_node(
        self, op: Op, layer: int, kind: str, label: str, inputs: Sequence[Value]
    ) -> int:
        edges = [self._make_edge(value) for value in inputs]
        kept = edges if kind in ROUND_KINDS else dict.fromkeys(edges)  # x + x is not x
        node = self._add_node(kind, label, tuple(kept), layer=layer, phase=op.phase)
        for value in op.outs:
            self._node_ids[value] = node
        return node

    def _add_node(self, kind: str, label: str, inputs: tuple[Edge, ...], **more: Any) -> int:
        node = Node(len(self.nodes), kind, label, inputs=inputs, **more)
        self.nodes[node.id] = node
        return node.id

    def _label(self, value: Value) -> str:
        return self.nodes[self._node_ids[value]].label

    def _make_edge(self, value: Value) -> Edge:
        return Edge(self._node_ids[value], wide=len(value.shape) > self._dims)

    def _fold_constants(self, op: Op) -> None:
        """An operation on constants gives a constant, named after the parameters in it."""
        used = [self._get_constant(value) for value in op.ins]
        learned = any(known.learned for known in used)
        names = list(dict.fromkeys(known.text for known in used if known.learned == learned))
        text = ", ".join(names)
        if len(names) == 1 and _name(op) in ("sigmoid", "silu", "softmax", "tanh", "exp"):
            text = f"{_name(op)}({text})"
        for value in op.outs:
            number = None if learned else value.number
            shown = (
                format_factor(number, self._constant_names)
                if number is not None
                else text or CONSTANT_LABEL
            )
            self._constants[value] = Constant(shown, learned, number)

    def _get_constant(self, value: Value) -> Constant:
        if value not in self._constants:
            number = None if value.learned else value.number
            text = parameter_symbol(value.name) or CONSTANT_LABEL
            text = text if number is None else format_factor(number, self._constant_names)
            self._constants[value] = Constant(text, value.learned, number)
        return self._constants[value]

    def _other_operand(self, first: object, second: object, value: Value) -> Constant:
        other = second if first is value else first
        if isinstance(other, Value):
            return self._get_constant(other)
        number = float(other)  # type: ignore[arg-type]
        return Constant(format_factor(number, self._constant_names), False, number)


def _axis(op: Op | None) -> object:
    """The axis of a stack or of a sum; None for no operation."""
    if op is None:
        return None
    return op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else 0)


def _name(op: Op) -> str:
    return str(getattr(op.func, "__name__", type(op.func).__name__)).strip("_")
