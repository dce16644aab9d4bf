"""Step 2: turn recorded operations into a graph of drawable nodes.

`GraphBuilder.add_op` classifies one operation after the other by what it does to values that depend
on the input ("varying" values):

    operation                                    result
    only constants and parameters as inputs      a `Constant`, no node
    norm, sub-layer                              node "norm", "sublayer"
    view, reshape, dropout, ...                  no node: the output is the same value
    x + y, x - y, x * y, both varying            node "add" or "mul", drawn as a circle
    x * c, x + c with a constant c               node "scale", labeled with c
    x / |x|, written out                         node "norm", labeled "Unit norm"
    any other function                           node "op", merged into boxes by `simplify`

For the first site of B2T this gives

    0 input x    1 sublayer Self-attention <- 0    2 add + <- 0, 1    3 norm Norm <- 2
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from addnorm.norms.base import Norm
from addnorm.report.diagram.label_text import (
    MINUS,
    OVER,
    PLUS,
    TIMES,
    format_factor,
    op_title,
    parameter_symbol,
)
from addnorm.report.diagram.placeholders import PlaceholderSublayer
from addnorm.report.diagram.recorder import Op, Value

ROUND_KINDS = ("add", "mul")
"""Kinds that are drawn as circles; edges may enter a circle from its sides."""

_PASSTHROUGH_OPS = frozenset(
    {
        "view", "view_as", "reshape", "to", "float", "double", "half", "type_as", "contiguous",
        "unsqueeze", "squeeze", "expand", "expand_as", "flatten", "unflatten", "transpose",
        "permute", "movedim", "alias", "clone", "dropout", "repeat", "repeat_interleave",
        "broadcast_to", "get",
    }
)  # fmt: skip
"""Functions that do not change the values (dropout is off): no node."""

_ARITHMETIC = {
    "add": "add", "radd": "add", "iadd": "add", "sub": "sub", "isub": "sub", "subtract": "sub",
    "rsub": "rsub", "mul": "mul", "rmul": "mul", "imul": "mul", "multiply": "mul", "div": "div",
    "truediv": "div", "itruediv": "div", "divide": "div", "true_divide": "div", "rdiv": "rdiv",
    "rtruediv": "rdiv", "neg": "neg", "detach": "detach",
}  # fmt: skip

"""Names of torch functions and operators, and the arithmetic that they do."""
_CLAMP_OPS = ("clamp", "clamp_min", "clip", "maximum", "gt", "ne")
"""Functions that guard the denominator of x / |x| against zero."""

UNIT_NORM_LABEL, CONSTANT_LABEL = "Unit norm", "c"


@dataclass(frozen=True)
class Edge:
    """One input of a node."""

    source: int
    minus: bool = False
    """Whether the target subtracts it."""
    wide: bool = False
    """Whether the tensor holds several streams; drawn as a thick line."""


@dataclass(frozen=True)
class Node:
    """One element of a diagram."""

    id: int
    kind: str
    """input, output, norm, sublayer, add, mul, scale, op or mix."""
    label: str
    note: str = ""
    """Second line of the box, in small type."""
    inputs: tuple[Edge, ...] = ()
    layer: int = -1
    """Index among the drawn layers; -1 before the first, -2 after the last."""
    phase: str = ""
    """Method of the wiring and site; see `recorder.Op`."""
    slot: int | None = None
    """Index in the wiring's state, if the node makes an entry of the state; 0 is the stream."""
    learned: bool = False
    """Whether a scale or a mix has parameters."""
    neutral: bool = False
    """Whether a scale is a factor of 1 or a summand of 0."""
    side: str = ""
    """Names of other inputs of a sub-layer, such as the memory."""


Graph = dict[int, Node]
"""Nodes by id, each after its inputs."""


@dataclass(frozen=True)
class Constant:
    """A value that does not depend on the input."""

    text: str
    """A number, the name of a number, or names of parameters."""
    learned: bool
    number: float | None = None


class GraphBuilder:
    """Builds a graph from recorded operations.

    Args:
        constants: names of numbers, such as {1.86: "alpha"}, for labels
        dims: number of dimensions of the stream; tensors with more hold several streams
    """

    def __init__(self, constants: Mapping[float, str], dims: int) -> None:
        self.nodes: Graph = {}
        self._constant_names = constants
        self._dims = dims
        self._node_ids: dict[Value, int] = {}
        self._constants: dict[Value, Constant] = {}
        self._ignored: set[Value] = set()
        self._stacked: dict[Value, Op] = {}
        # For each value computed from |x|: the x. Detects x / |x| that is written out.
        self._vector_norms: dict[Value, Value] = {}

    def add_source(self, value: Value, label: str, layer: int = -1, slot: int | None = None) -> int:
        """Add an input node for a value and return its id."""
        self._node_ids[value] = self._add_node("input", label, (), layer=layer, slot=slot)
        return self._node_ids[value]

    def add_context(self, values: Iterable[Value]) -> None:
        """Register other inputs of sub-layers, which are labels and not edges."""
        self._ignored.update(values)

    def add_alias(self, value: Value, other: Value) -> None:
        """Make `value` a second name of `other`."""
        if other in self._node_ids:
            self._node_ids[value] = self._node_ids[other]
        else:
            self._constants[value] = self._get_constant(other)

    def set_slot(self, value: Value, position: int) -> None:
        """Mark the node that makes `value` as an entry of the wiring's state."""
        node = self.nodes.get(self._node_ids.get(value, -1))
        if node is not None and node.slot is None:
            self.nodes[node.id] = replace(node, slot=position)

    def add_sink(self, value: Value, label: str, layer: int) -> int:
        """Add an output node that reads a value and return its id."""
        return self._add_node("output", label, (self._make_edge(value),), layer=layer)

    def find_node(self, value: Value) -> int | None:
        """Return the id of the node that makes a value; None for a constant."""
        return self._node_ids.get(value)

    def add_op(self, op: Op, layer: int) -> None:
        """Add an operation; see the table in the module docstring."""
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
            # torch.stack([a, b, c]).sum(0) is a + b + c.
            self._add_op_node(op, layer, "add", "+", self._stacked[varying[0]].ins)
        else:
            self._add_opaque(op, layer, varying)

    def _try_unit_norm(self, op: Op, layer: int, varying: list[Value]) -> bool:
        """Follow |x| through the operation; return whether it completes x / |x|.

        The pattern is vector_norm, optional clamps, a division, and an optional torch.where that
        handles the zero vector.
        """
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
            self.add_alias(op.outs[0], others[0])
            return True
        return False

    def _add_arithmetic(self, op: Op, layer: int, varying: list[Value]) -> None:
        operation, (first, *rest) = _ARITHMETIC[_name(op)], op.args
        both_vary = bool(rest) and first in self._node_ids and rest[0] in self._node_ids
        if operation == "detach":
            self._add_op_node(op, layer, "scale", "stop gradient", varying)
        elif operation == "neg":
            self._add_op_node(op, layer, "scale", MINUS, varying)
        elif operation in ("rsub", "rdiv") or op.kwargs:  # c - x, c / x, add(alpha=...)
            self._add_opaque(op, layer, varying)
        elif both_vary and operation in ("add", "sub"):
            node = self._add_op_node(op, layer, "add", "+", [first, rest[0]])
            if operation == "sub":
                left, right = self.nodes[node].inputs
                inputs = (left, replace(right, minus=True))
                self.nodes[node] = replace(self.nodes[node], inputs=inputs)
        elif both_vary and operation == "mul":
            self._add_op_node(op, layer, "mul", TIMES, [first, rest[0]])
        elif len(varying) == 1 and op.outs[0].shape == varying[0].shape:
            constant = self._other_operand(first, rest[0], varying[0])
            self._add_scale(op, layer, operation, varying[0], constant)
        else:
            self._add_opaque(op, layer, varying)

    def _add_scale(
        self, op: Op, layer: int, operation: str, value: Value, constant: Constant
    ) -> None:
        neutral = constant.number == (0 if operation in ("add", "sub") else 1)
        symbol = {"mul": TIMES, "div": OVER, "add": PLUS, "sub": MINUS}[operation]
        if operation in ("sub", "div") and value is not op.args[0]:  # c - x, c / x
            self._add_opaque(op, layer, [value])
            return
        is_named_factor = "=" in constant.text and operation == "mul"  # such as "alpha = 1.86"
        label = constant.text if is_named_factor else f"{symbol} {constant.text}"
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
        # A box shows each input once, but x + x needs two edges.
        inputs_shown = edges if kind in ROUND_KINDS else dict.fromkeys(edges)
        node = self._add_node(kind, label, tuple(inputs_shown), layer=layer, phase=op.phase)
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
        """Register the outputs of an operation on constants as constants.

        The text is the number of a single element, or else the names of the parameters.
        """
        used = [self._get_constant(value) for value in op.ins]
        learned = any(constant.learned for constant in used)
        names = list(dict.fromkeys(each.text for each in used if each.learned == learned))
        text = ", ".join(names)
        if len(names) == 1 and _name(op) in ("sigmoid", "silu", "softmax", "tanh", "exp"):
            text = f"{_name(op)}({text})"
        for value in op.outs:
            number = None if learned else value.number
            if number is not None:
                label = format_factor(number, self._constant_names)
            else:
                label = text or CONSTANT_LABEL
            self._constants[value] = Constant(label, learned, number)

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
    """Return the axis of `torch.stack` or `sum`; None without an operation."""
    if op is None:
        return None
    return op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else 0)


def _name(op: Op) -> str:
    return str(getattr(op.func, "__name__", type(op.func).__name__)).strip("_")
