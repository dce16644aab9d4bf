"""From a record to a graph that one can draw: adds, scales, norms, sub-layers, mixtures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from addnorm.norms.base import Norm
from addnorm.report.diagram.placeholders import StandIn
from addnorm.report.diagram.recorder import Op, Value
from addnorm.report.diagram.symbols import MINUS, OVER, PLUS, TIMES, factor, op_title, symbol

ROUND = ("add", "mul")
"""Kinds that are drawn as circles and entered from their sides."""

_MOVES = frozenset(
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


_GUARDS = ("clamp", "clamp_min", "clip", "maximum", "gt", "ne")
"""What is done to a length before something is divided by it."""

UNIT, CONSTANT = "Unit norm", "c"


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


class Builder:
    """Turns recorded operations, one after the other, into nodes."""

    def __init__(self, constants: Mapping[float, str], dims: int) -> None:
        self.nodes: Graph = {}
        self._names = constants
        self._dims = dims
        self._at: dict[Value, int] = {}
        self._constant: dict[Value, Constant] = {}
        self._ignored: set[Value] = set()
        self._stacked: dict[Value, Op] = {}
        self._lengths: dict[Value, Value] = {}  # what is made of the length of a vector, and which

    def source(self, value: Value, label: str, layer: int = -1, slot: int | None = None) -> int:
        """A place where something enters the picture."""
        self._at[value] = self._new("input", label, (), layer=layer, slot=slot)
        return self._at[value]

    def context(self, values: Iterable[Value]) -> None:
        """What sub-layers read besides their branch."""
        self._ignored.update(values)

    def join(self, value: Value, other: Value) -> None:
        """From here on `value` is what `other` is."""
        if other in self._at:
            self._at[value] = self._at[other]
        else:
            self._constant[value] = self._known(other)

    def slot(self, value: Value, position: int) -> None:
        """The value is that entry of the state."""
        node = self.nodes.get(self._at.get(value, -1))
        if node is not None and node.slot is None:
            self.nodes[node.id] = replace(node, slot=position)

    def sink(self, value: Value, label: str, layer: int) -> int:
        """A place where something leaves the picture."""
        return self._new("output", label, (self._edge(value),), layer=layer)

    def holds(self, value: Value) -> int | None:
        """The node that makes a value, if it depends on the input."""
        return self._at.get(value)

    def add(self, op: Op, layer: int) -> None:
        """Understand one operation."""
        varying = [value for value in dict.fromkeys(op.ins) if value in self._at]
        if not varying:
            self._fold(op)
        elif isinstance(op.func, Norm):
            self._emit(op, layer, "norm", "Norm", varying)
        elif isinstance(op.func, StandIn):
            side = ", ".join(sorted(v.name for v in op.ins if v in self._ignored))
            node = self._emit(op, layer, "sublayer", op.func.title, varying)
            self.nodes[node] = replace(self.nodes[node], note=op.func.note, side=side)
        elif _name(op) in _MOVES and len(op.outs) == 1 and len(varying) == 1:
            self._at[op.outs[0]] = self._at[varying[0]]
        elif self._unit(op, layer, varying):
            return
        elif _name(op) in _ARITHMETIC:
            self._arithmetic(op, layer, varying)
        elif _name(op) == "sum" and _axis(op) == _axis(self._stacked.get(varying[0])):
            self._emit(op, layer, "add", "+", self._stacked[varying[0]].ins)
        else:
            self._opaque(op, layer, varying)

    def _unit(self, op: Op, layer: int, varying: list[Value]) -> bool:
        """Whether the operation finishes x / |x|, which is a norm without a module."""
        lengths = [value for value in varying if value in self._lengths]
        others = [value for value in varying if value not in self._lengths]
        if _name(op).endswith("vector_norm"):
            self._lengths[op.outs[0]] = varying[0]
        elif _name(op) in _GUARDS and lengths and not others:
            self._lengths |= dict.fromkeys(op.outs, self._lengths[lengths[0]])
        elif _name(op) in ("div", "truediv") and others == [self._lengths.get(op.args[1])]:
            self._emit(op, layer, "norm", UNIT, others)
            return True
        elif _name(op) == "where" and lengths and [self._label(v) for v in others] == [UNIT]:
            self.join(op.outs[0], others[0])  # what becomes of the zero vector
            return True
        return False

    def _arithmetic(self, op: Op, layer: int, varying: list[Value]) -> None:
        what, (first, *rest) = _ARITHMETIC[_name(op)], op.args
        both = bool(rest) and first in self._at and rest[0] in self._at
        if what == "detach":
            self._emit(op, layer, "scale", "stop gradient", varying)
        elif what == "neg":
            self._emit(op, layer, "scale", MINUS, varying)
        elif what in ("rsub", "rdiv") or op.kwargs:
            self._opaque(op, layer, varying)
        elif both and what in ("add", "sub"):
            node = self._emit(op, layer, "add", "+", [first, rest[0]])
            if what == "sub":
                left, right = self.nodes[node].inputs
                minus = replace(right, minus=True)
                self.nodes[node] = replace(self.nodes[node], inputs=(left, minus))
        elif both and what == "mul":
            self._emit(op, layer, "mul", TIMES, [first, rest[0]])
        elif len(varying) == 1 and op.outs[0].shape == varying[0].shape:
            self._scaled(op, layer, what, varying[0], self._other(first, rest[0], varying[0]))
        else:
            self._opaque(op, layer, varying)

    def _scaled(self, op: Op, layer: int, what: str, value: Value, by: Constant) -> None:
        neutral = by.number == (0 if what in ("add", "sub") else 1)
        sign = {"mul": TIMES, "div": OVER, "add": PLUS, "sub": MINUS}[what]
        if what in ("sub", "div") and value is not op.args[0]:
            self._opaque(op, layer, [value])
            return
        label = by.text if "=" in by.text and what == "mul" else f"{sign} {by.text}"
        node = self._emit(op, layer, "scale", label, [value])
        self.nodes[node] = replace(self.nodes[node], learned=by.learned, neutral=neutral)

    def _opaque(self, op: Op, layer: int, varying: list[Value]) -> None:
        used = [self._known(v) for v in op.ins if v not in self._at and v not in self._ignored]
        names = dict.fromkeys(c.text for c in used if c.learned)
        if _name(op) == "stack" and not used:
            self._stacked[op.outs[0]] = op
        node = self._emit(op, layer, "op", op_title(_name(op)), varying)
        self.nodes[node] = replace(
            self.nodes[node], note=", ".join(names), learned=any(c.learned for c in used)
        )

    def _emit(self, op: Op, layer: int, kind: str, label: str, ins: Sequence[Value]) -> int:
        edges = [self._edge(value) for value in ins]
        kept = edges if kind in ROUND else dict.fromkeys(edges)  # x + x is not x
        node = self._new(kind, label, tuple(kept), layer=layer, phase=op.phase)
        for value in op.outs:
            self._at[value] = node
        return node

    def _new(self, kind: str, label: str, inputs: tuple[Edge, ...], **more: Any) -> int:
        node = Node(len(self.nodes), kind, label, inputs=inputs, **more)
        self.nodes[node.id] = node
        return node.id

    def _label(self, value: Value) -> str:
        return self.nodes[self._at[value]].label

    def _edge(self, value: Value) -> Edge:
        return Edge(self._at[value], wide=len(value.shape) > self._dims)

    def _fold(self, op: Op) -> None:
        """An operation on constants gives a constant, named after the parameters in it."""
        used = [self._known(value) for value in op.ins]
        learned = any(known.learned for known in used)
        names = list(dict.fromkeys(known.text for known in used if known.learned == learned))
        text = ", ".join(names)
        if len(names) == 1 and _name(op) in ("sigmoid", "silu", "softmax", "tanh", "exp"):
            text = f"{_name(op)}({text})"
        for value in op.outs:
            number = None if learned else value.number
            shown = factor(number, self._names) if number is not None else text or CONSTANT
            self._constant[value] = Constant(shown, learned, number)

    def _known(self, value: Value) -> Constant:
        if value not in self._constant:
            number = None if value.learned else value.number
            text = symbol(value.name) or CONSTANT
            text = text if number is None else factor(number, self._names)
            self._constant[value] = Constant(text, value.learned, number)
        return self._constant[value]

    def _other(self, first: object, second: object, value: Value) -> Constant:
        other = second if first is value else first
        if isinstance(other, Value):
            return self._known(other)
        number = float(other)  # type: ignore[arg-type]
        return Constant(factor(number, self._names), False, number)


def _axis(op: Op | None) -> object:
    """The axis of a stack or of a sum; None for no operation."""
    if op is None:
        return None
    return op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else 0)


def _name(op: Op) -> str:
    return str(getattr(op.func, "__name__", type(op.func).__name__)).strip("_")
