"""Recording: the result of one recorded forward pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.residual.residual_adds import ResidualAdd
from addnorm.doctor.trace.statistics import ActivationStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Graph, residual adds and statistics of one forward pass."""

    output: Any
    """What the model returned."""
    graph: Graph
    residual_adds: Mapping[int, ResidualAdd]
    """Residual adds as matched during the pass, by the node of their sum."""
    stats: ActivationStats
    inputs: tuple[int, ...]
    """Nodes of the input tensors, in the order of the call."""
    outputs: tuple[int, ...]
    """Nodes of the output tensors that depend on an input."""
    call_counts: Mapping[str, int]
    """Number of calls of each module, by path."""
    no_grad_weights: frozenset[str]
    """Weights that were used while autograd was off, as inside a reentrant checkpoint."""
    tensor_nodes: Mapping[Tensor, int]
    """Node that each living tensor is the result of; tensors are held weakly."""

    def find_node(self, tensor: Tensor) -> int | None:
        """Return the node that a tensor is the result of."""
        return self.tensor_nodes.get(tensor)
