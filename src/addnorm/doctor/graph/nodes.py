"""Nodes: the operations of one forward pass, in the order of execution."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Shape = tuple[int, ...]


class CallKey(NamedTuple):
    """Name of one function call in a forward pass, the same in every pass of the model.

    Other operations do not change it, so that dropout does not shift the calls after it.
    """

    path: str
    """Path of the module that makes the call."""
    module_call: int
    """Which call of that module it is in, from 1; a shared layer is called several times."""
    op: str
    """Canonical name of the function."""
    number: int
    """Which call of that function it is in that call of the module, from 1."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One argument of an operation."""

    kind: Literal["node", "weight", "constant", "number"]
    node: int = -1
    """Index of the node; -1 for the other kinds."""
    value: float | None = None
    """The number, or the mean of a small weight or constant."""
    shape: Shape = ()
    name: str = ""
    """Qualified name of a weight in the model; empty if the model does not own it."""
    frozen: bool = False
    """Whether it is a weight that requires no gradient; registered ones all do during a trace."""
    causal_offset: int = 0
    """First diagonal that a causal mask hides (1 or 2); 0 if the constant is not such a mask."""
    favors_far: bool = False
    """Whether it is a constant bias of pairs of tokens that grows with their distance."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A factor that multiplies a stream."""

    kind: Literal["weight", "constant", "input"]
    value: float | None
    shape: Shape
    node: int
    """Node of the product."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape) if self.shape else 1


@dataclass(slots=True)
class Node:
    """One operation and its result.

    The recorder fills nodes while the forward pass runs. `users` grows as later operations read
    the result, and `Graph.mark_as_stream` may turn a learned node into an active one. After the
    forward pass nodes do not change.
    """

    index: int
    op: str
    operands: tuple[Operand, ...]
    shape: Shape
    path: str
    """Path of the module that executes the operation."""
    dtype: Any = None
    active: bool = False
    """Whether the result is an activation: floating point, and computed from an input."""
    depends_on_input: bool = False
    """Whether the result depends on an input in any way, integers and masks included."""
    learned: bool = False
    """Whether the result is computed from weights and is not active."""
    value: float | None = None
    """Mean of a small result that is not active."""
    causal_offset: int = 0
    """First diagonal that a causal mask hides (1 or 2); 0 if the result is not such a mask."""
    favors_far: bool = False
    """Whether it is a constant bias of pairs of tokens that grows with their distance."""
    detail: dict[str, Any] = field(default_factory=dict)
    """Plain arguments that the analysis needs, such as axes and epsilon."""
    inputs: tuple[int, ...] = ()
    """Active nodes among the operands."""
    users: list[int] = field(default_factory=list)
    """Active nodes that have this one among their inputs."""
    last_mixing: int = -1
    """Newest node that mixes among this node and its ancestors; -1 precedes every node."""
    from_float_input: bool = False
    """Whether a floating-point input of the model is among the ancestors."""
    grad: bool = False
    """Whether the result requires a gradient."""
    call: CallKey | None = None
    """Function call that computes the result; None inside an opaque module."""

    @property
    def size(self) -> int:
        """Number of elements of the result."""
        return math.prod(self.shape)
