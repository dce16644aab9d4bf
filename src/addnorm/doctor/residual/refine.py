"""Refinement of the recorded residual adds, once the whole graph is known.

The recorder tests an addition when it is executed, so it cannot use what follows. This pass drops
matches that later operations disprove, and corrects the forks of those that they complete:

    h = sigmoid(g) * h + (1 - sigmoid(g)) * u    in a loop with the same weights: a recurrent cell
    z = sigmoid(W y + U x)                       the sum is the input of a gate, not a stream
    x + a * (f - x)                              the inner difference is part of the outer add
    s0 = s0 + b0 * f, s1 = s1 + b1 * f           one branch, written to every parallel stream
    y1 = x1 + f(x2), y2 = x2 + g(y1)             reversible: g reads the other stream

Example: two steps of the recurrent cell of the first line. Each step alone looks like a gated
residual connection. Only the graph of both shows that they have the same weights:

    >>> import torch
    >>> from addnorm.doctor.model_trace import trace_model
    >>> class Cell(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.g, self.u = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    ...
    ...     def forward(self, h):
    ...         for _ in range(2):
    ...             gate = self.g(h).sigmoid()
    ...             h = gate * h + (1 - gate) * self.u(h).tanh()
    ...         return h
    >>> with trace_model(Cell(), torch.randn(2, 3, 4)) as trace:
    ...     recorded = trace.recording.residual_adds
    ...     len(recorded), len(refine_adds(trace.recording.graph, recorded))
    (2, 0)
"""

from dataclasses import replace

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.residual.mixtures import find_read_mixture
from addnorm.doctor.residual.residual_adds import Adds, ResidualAdd
from addnorm.doctor.residual.reversible import redirect_crossed_adds
from addnorm.doctor.residual.shortcut_steps import GATE_OPS


def refine_adds(graph: Graph, adds: Adds) -> dict[int, ResidualAdd]:
    """Return the residual adds of a complete graph.

    Args:
        graph: graph of a whole forward pass
        adds: residual adds as the recorder found them, by the node of their sum
    """
    kept = _drop_gates(graph, _drop_recurrences(graph, adds))
    differences = {add.difference_node for add in kept.values()}
    kept = {index: add for index, add in kept.items() if index not in differences}
    return redirect_crossed_adds(graph, _merge_parallel_writes(graph, kept))


def _drop_recurrences(graph: Graph, adds: Adds) -> dict[int, ResidualAdd]:
    """Drop gated adds that share one set of weights: the time steps of a recurrent cell."""
    counts: dict[frozenset[str], int] = {}
    weights: dict[int, frozenset[str]] = {}
    for index, add in adds.items():
        if add.is_gated and add.op != "gru_cell":
            operands = (o for i in add.path for o in graph[i].operands)
            weights[index] = frozenset(o.name for o in operands if o.kind == "weight" and o.name)
            counts[weights[index]] = counts.get(weights[index], 0) + 1
    return {
        index: add
        for index, add in adds.items()
        if index not in weights or counts[weights[index]] == 1 or not weights[index]
    }


def _drop_gates(graph: Graph, adds: Adds) -> dict[int, ResidualAdd]:
    """Drop projected sums that are read only by a gate: `sigmoid(W y + U x)`."""

    def feeds_gate(index: int) -> bool:
        users = [graph[i] for i in graph[index].users]
        while len(users) == 1 and users[0].op in ("add", "sub") and len(users[0].inputs) == 1:
            users = [graph[i] for i in users[0].users]
        return bool(users) and all(user.op in GATE_OPS for user in users)

    return {i: add for i, add in adds.items() if not (add.has_projection and feeds_gate(i))}


def _merge_parallel_writes(graph: Graph, adds: Adds) -> dict[int, ResidualAdd]:
    """Keep one add where a branch is written to several parallel streams, one after another.

    The last of these adds represents all of them; its mixture is what the branch reads.
    """
    writes: dict[int, list[int]] = {}
    for index, add in sorted(adds.items()):
        writes.setdefault(graph.trace_back(add.branch)[-1][0], []).append(index)
    kept = dict(adds)
    for group in writes.values():
        last = adds[group[-1]]
        if len(group) > 1 and not last.is_mixed and last.parallel_to is None:
            mixture = find_read_mixture(graph, adds, fork=last.fork, branch=last.branch)
            if mixture is not None:
                last = kept[group[-1]] = replace(last, mixture=mixture)
        if last.is_mixed:
            for index in group[:-1]:
                del kept[index]
    return kept
