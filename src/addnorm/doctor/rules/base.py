"""Audit rules: what a rule gets, what it returns, and where it is registered."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from addnorm.doctor.analysis.labels import label
from addnorm.doctor.analysis.norms import Norm, own_gain
from addnorm.doctor.analysis.results import Anatomy, Reading
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import SLICES, mixes
from addnorm.doctor.model_trace import Visit
from addnorm.doctor.report import Finding

Rule = Callable[["Case"], Iterable[Finding]]
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    """Decorator: makes a rule known under its id."""

    def add(function: Rule) -> Rule:
        if name in RULES:
            raise ValueError(f"rule {name!r} is registered twice")
        RULES[name] = function
        return function

    return add


@dataclass
class Case:
    """A visit, and what else the caller gave."""

    visit: Visit
    optimizer: Any = None
    config: Mapping[str, Any] | None = None
    build: Callable[..., nn.Module] | None = None
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The recorded graph."""
        return self.visit.anatomy.graph

    @property
    def anatomy(self) -> Anatomy:
        """What was read from it."""
        return self.visit.anatomy

    @property
    def norms(self) -> dict[int, Norm]:
        """Every use of a norm."""
        return self.anatomy.norms

    @cached_property
    def blocks(self) -> list[Reading]:
        """The residual adds of the main streams."""
        return self.anatomy.blocks()

    def wiring(self, reading: Reading) -> str:
        """The class of a block."""
        return label(self.anatomy, reading)

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The model's weights by name."""
        return dict(self.visit.model.named_parameters())

    def norm_weights(self, norm: Norm) -> tuple[str, ...]:
        """Names of the gain and bias of a norm, wherever they are applied."""
        names = list(norm.weights)
        index = norm.node
        for gain in sorted(own_gain(self.graph, norm))[:1]:
            names += self.named_operands(gain, sliced=False)
            index = gain
        for kid in self.graph[index].kids:
            node = self.graph[kid]
            if node.op in ("add", "sub") and len(node.ins) == 1:
                names += self.named_operands(kid, sliced=False)
        return tuple(n for n in dict.fromkeys(names) if n in norm.weights or self._fits(n, norm))

    def _fits(self, name: str, norm: Norm) -> bool:
        """Whether a weight has one number for each feature, or one for all: a table has more."""
        weight, shape = self.weights[name], self.graph[norm.source].shape
        wide = math.prod(shape[axis] for axis in norm.axes or (-1,)) if shape else 1
        return weight.numel() in (1, wide, *shape[-1:]) and weight.squeeze().dim() <= 1

    def named_operands(self, index: int, *, sliced: bool = True) -> list[str]:
        """Weights that went into a node, directly or through 1 + w and casts; and as slices of
        something larger, if so wanted."""
        found: list[str] = []
        if not sliced and self.graph[index].op in SLICES:
            return found
        for operand in self.graph[index].operands:
            if operand.kind == "weight" and operand.name:
                found.append(operand.name)
            elif operand.kind == "node" and self.graph[operand.node].learned:
                found += self.named_operands(operand.node, sliced=sliced)
        return found

    def branch_weights(self, reading: Reading) -> tuple[str, ...]:
        """Matrices that a block's branch uses, in the order of use."""
        names: list[str] = []
        for index in sorted(reading.join.path - {reading.join.fork}):
            if mixes(self.graph[index].op):
                names += self.named_operands(index)
        return tuple(dict.fromkeys(n for n in names if self.weights[n].dim() > 1))

    def home(self, reading: Reading) -> str:
        """The module that adds, or the branch's if it has no name."""
        return reading.join.module or "the model itself"

    def each_norm(self) -> Iterator[Norm]:
        """Uses of norms in the order of time."""
        yield from (self.norms[index] for index in sorted(self.norms))
