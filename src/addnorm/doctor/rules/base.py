"""Audit rules: what a rule gets, what it returns, and where it is registered."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from addnorm.doctor.analysis.labels import wiring_label
from addnorm.doctor.analysis.norms import Norm, find_gain_nodes
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import SLICES, is_mixing
from addnorm.doctor.model_trace import ModelTrace
from addnorm.doctor.report import Finding

Rule = Callable[["RuleContext"], Iterable[Finding]]
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
class RuleContext:
    """A visit, and what else the caller gave."""

    trace: ModelTrace
    optimizer: Any = None
    config: Mapping[str, Any] | None = None
    build: Callable[..., nn.Module] | None = None
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The recorded graph."""
        return self.trace.analysis.graph

    @property
    def analysis(self) -> ModelAnalysis:
        """What was read from it."""
        return self.trace.analysis

    @property
    def norms(self) -> dict[int, Norm]:
        """Every use of a norm."""
        return self.analysis.norms

    @cached_property
    def blocks(self) -> list[AddAnalysis]:
        """The residual adds of the main streams."""
        return self.analysis.blocks()

    def wiring(self, reading: AddAnalysis) -> str:
        """The class of a block."""
        return wiring_label(self.analysis, reading)

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The model's weights by name."""
        return dict(self.trace.model.named_parameters())

    def norm_weights(self, norm: Norm) -> tuple[str, ...]:
        """Names of the gain and bias of a norm, wherever they are applied."""
        names = list(norm.weights)
        index = norm.node
        for gain in sorted(find_gain_nodes(self.graph, norm))[:1]:
            names += self.weight_names(gain, include_slices=False)
            index = gain
        for kid in self.graph[index].users:
            node = self.graph[kid]
            if node.op in ("add", "sub") and len(node.inputs) == 1:
                names += self.weight_names(kid, include_slices=False)
        return tuple(
            n for n in dict.fromkeys(names) if n in norm.weights or self._is_norm_weight(n, norm)
        )

    def _is_norm_weight(self, name: str, norm: Norm) -> bool:
        """Whether a weight has one number for each feature, or one for all: a table has more."""
        weight, shape = self.weights[name], self.graph[norm.source].shape
        wide = math.prod(shape[axis] for axis in norm.axes or (-1,)) if shape else 1
        return weight.numel() in (1, wide, *shape[-1:]) and weight.squeeze().dim() <= 1

    def weight_names(self, index: int, *, include_slices: bool = True) -> list[str]:
        """Weights that went into a node, directly or through 1 + w and casts; and as slices of
        something larger, if so wanted."""
        found: list[str] = []
        if not include_slices and self.graph[index].op in SLICES:
            return found
        for operand in self.graph[index].operands:
            if operand.kind == "weight" and operand.name:
                found.append(operand.name)
            elif operand.kind == "node" and self.graph[operand.node].learned:
                found += self.weight_names(operand.node, include_slices=include_slices)
        return found

    def branch_weights(self, reading: AddAnalysis) -> tuple[str, ...]:
        """Matrices that a block's branch uses, in the order of use."""
        names: list[str] = []
        for index in sorted(reading.add.path - {reading.add.fork}):
            if is_mixing(self.graph[index].op):
                names += self.weight_names(index)
        return tuple(dict.fromkeys(n for n in names if self.weights[n].dim() > 1))

    def module_path(self, reading: AddAnalysis) -> str:
        """The module that adds, or the branch's if it has no name."""
        return reading.add.module or "the model itself"

    def iter_norms(self) -> Iterator[Norm]:
        """Uses of norms in the order of time."""
        yield from (self.norms[index] for index in sorted(self.norms))
