"""Context of a rule: the trace of a model, and queries that several rules need."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from addnorm.doctor.residual.residual_adds import ResidualAdd
from addnorm.doctor.trace.statistics import Attention

RANDOM_DEVIATION = 0.5
"""Deviation of a gain or bias from which it may be a random draw instead of trained."""


@dataclass
class RuleContext:
    """Everything a rule may read: the trace of a model and the caller's optional inputs."""

    trace: ModelTrace
    optimizer: Any = None
    """Optimizer of the model, for rules about its parameter groups."""
    config: Mapping[str, Any] | None = None
    """Options that the model was built with."""
    build: Callable[..., nn.Module] | None = None
    """Function that builds the model from `config`."""
    cache: dict[str, Any] = field(default_factory=dict)
    """Results that several rules share, such as the outputs of a probe."""
    notes: list[str] = field(default_factory=list)
    """What a rule could not check; printed with the report."""

    @property
    def graph(self) -> Graph:
        """The recorded graph."""
        return self.trace.analysis.graph

    @property
    def analysis(self) -> ModelAnalysis:
        """The residual adds, norms and streams found in the graph."""
        return self.trace.analysis

    @property
    def norms(self) -> dict[int, Norm]:
        """Every use of a norm, by graph node."""
        return self.analysis.norms

    def add_stats(self, add: ResidualAdd) -> Mapping[str, float]:
        """Return the variances measured at a residual add, by name."""
        return self.trace.recording.stats.add_stats.get(add.node, {})

    @cached_property
    def blocks(self) -> list[AddAnalysis]:
        """The residual adds of the main streams, in the order of the forward pass."""
        return self.analysis.blocks()

    @cached_property
    def _used_nodes(self) -> set[int]:
        """The nodes that the outputs depend on; empty if the outputs are not in the graph."""
        return self.graph.data_ancestors(*self.trace.recording.outputs)

    def is_used(self, index: int) -> bool:
        """Return whether an output of the model depends on a node, as far as is known."""
        return not self._used_nodes or index in self._used_nodes

    def wiring(self, block: AddAnalysis) -> str:
        """Return the position of a block's norms, such as `pre_ln`."""
        return wiring_label(self.analysis, block)

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The parameters of the model by name."""
        return dict(self.trace.model.named_parameters())

    def is_trainable(self, name: str) -> bool:
        """Return whether a weight requires a gradient outside the trace, where all of them do."""
        guard = self.trace.guard
        return guard is None or guard.is_trainable(name)

    def norm_weights(self, norm: Norm) -> tuple[str, ...]:
        """Return the names of the gain and bias of a norm.

        A norm written out by hand applies them in later nodes, so these are searched too.
        """
        names = list(norm.weights)
        index = norm.node
        for gain in sorted(find_gain_nodes(self.graph, norm))[:1]:
            names += self.weight_names(gain, include_slices=False)
            index = gain
        for user in self.graph[index].users:
            node = self.graph[user]
            if node.op in ("add", "sub") and len(node.inputs) == 1:
                names += self.weight_names(user, include_slices=False)
        return tuple(
            n for n in dict.fromkeys(names) if n in norm.weights or self._is_norm_weight(n, norm)
        )

    @cached_property
    def has_trained_gains(self) -> bool:
        """Whether the entries of a gain or bias of a norm differ, as after training.

        Not if all of them look like draws of a wide distribution around 0, as after an
        initialization that fills every parameter alike: trained gains stay near their mean.
        """
        names = {name for norm in self.iter_norms() for name in self.norm_weights(norm)}
        weights = (self.weights[name].detach().float().flatten() for name in names)
        varied = [w for w in weights if w.numel() > 1 and bool((w != w[0]).any())]
        return any(bool(w.std() < RANDOM_DEVIATION or w.mean().abs() > w.std() / 2) for w in varied)

    def square_attentions(self, blocks: Sequence[AddAnalysis] | None = None) -> list[Attention]:
        """Return the attentions with as many queries as keys; only self-attentions of `blocks`."""
        square = [a for a in self.trace.recording.stats.attentions if a.is_square]
        if blocks is None:
            return square
        paths = [block.add.path for block in blocks if block.kind == "self-attention"]
        return [a for a in square if any(a.node in path for path in paths)]

    def _is_norm_weight(self, name: str, norm: Norm) -> bool:
        """Return whether a weight has one number per normalized feature, or a single number.

        Larger weights, such as an embedding table added to the result, do not belong to the norm.
        """
        weight, shape = self.weights[name], self.graph[norm.source].shape
        wide = math.prod(shape[axis] for axis in norm.axes or (-1,)) if shape else 1
        return weight.numel() in (1, wide, *shape[-1:]) and weight.squeeze().dim() <= 1

    def weight_names(self, index: int, *, include_slices: bool = True) -> list[str]:
        """Return the names of the weights that a node reads, directly or as `1 + w` or a cast.

        Args:
            index: the node
            include_slices: also return weights of which the node reads a slice
        """
        names: list[str] = []
        if not include_slices and self.graph[index].op in SLICES:
            return names
        for operand in self.graph[index].operands:
            if operand.kind == "weight" and operand.name:
                names.append(operand.name)
            elif operand.kind == "node" and self.graph[operand.node].learned:
                names += self.weight_names(operand.node, include_slices=include_slices)
        return names

    def branch_weights(self, block: AddAnalysis) -> tuple[str, ...]:
        """Return the names of the matrices in a block's branch, in the order of use."""
        names: list[str] = []
        for index in sorted(block.add.path - {block.add.fork}):
            if is_mixing(self.graph[index].op):
                names += self.weight_names(index)
        return tuple(dict.fromkeys(n for n in names if self.weights[n].dim() > 1))

    def module_path(self, block: AddAnalysis) -> str:
        """Return the path of the module that performs the add."""
        return block.add.module or "the model itself"

    def iter_norms(self) -> Iterator[Norm]:
        """Iterate over the uses of norms in the order of the forward pass."""
        yield from (self.norms[index] for index in sorted(self.norms))
