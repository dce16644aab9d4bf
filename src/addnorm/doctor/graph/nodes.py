"""Nodes: what one forward carried out, operation by operation."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """One argument of an operation."""

    kind: Literal["node", "weight", "constant", "number"]
    node: int = -1
    value: float | None = None
    """The number; the mean of a small weight or constant."""
    shape: Shape = ()
    name: str = ""
    """The weight's own name in the model."""
    causal_offset: int = 0
    """Of a constant that is a mask of the future: how many tokens ahead it begins."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A factor met on the way."""

    kind: Literal["weight", "constant", "input"]
    value: float | None
    shape: Shape
    node: int
    """Where it was multiplied."""
    spread: bool = False
    """Whether its entries differ."""

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape) if self.shape else 1


@dataclass(slots=True)
class Node:
    """One operation that was carried out."""

    index: int
    op: str
    operands: tuple[Operand, ...]
    shape: Shape
    path: str
    """The module that carried it out."""
    dtype: Any = None
    active: bool = False
    """A floating value that depends on what the model was given."""
    depends_on_input: bool = False
    """Depends on what the model was given, integers and masks included."""
    learned: bool = False
    """Not active, made of weights."""
    value: float | None = None
    causal_offset: int = 0
    """Of a mask of the future: how many tokens ahead it begins."""
    detail: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[int, ...] = ()
    """The active nodes it was made of."""
    users: list[int] = field(default_factory=list)
    last_mixing: int = -1
    """The newest node that mixes among those it is made of."""
    from_float_input: bool = False
    """Whether a floating input is among them."""
    grad: bool = False
    """Whether autograd follows it."""

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)
