"""Placement of norms on a branch: at its start, at its end, or inside.

    x + f(norm(x))           entry norm     Pre-LN
    x + norm(f(x))           exit norm      res-post-norm
    x + norm(f(norm(x)))     both           sandwich
    x + f2(norm(f1(x)))      inner norm

Entry: the search follows every path from the fork into the branch, up to a norm or an operation
that mixes. If every path meets a norm first, these are entry norms; if only some do, they are
partial norms. Exit: the search walks back from the end of the branch over scales and biases, and
collects the scales, which are LayerScale, ReZero or a constant factor.

The placement may also correct the residual add: a branch that ends in `gate * f(x)` is gated, and a
norm before both a branch and its projected shortcut moves the fork to the input of that norm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from addnorm.doctor.analysis.norms import Norm, find_coefficient_norms, find_gain_nodes
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.graph.ops import NONLINEAR, PASS_THROUGH, is_mixing
from addnorm.doctor.residual.residual_adds import Adds, ResidualAdd
from addnorm.doctor.residual.shortcut_steps import MAX_NORM_NODES, find_gated_stream

MAX_EXIT_STEPS = 40
"""Maximum number of steps from the end of a branch back to its exit norm."""
MAX_PREACTIVATION_STEPS = 6
"""Maximum number of steps from a fork back to a norm shared by branch and shortcut."""


@dataclass(frozen=True, slots=True)
class NormPlacement:
    """Norms and scales of one branch, and the residual add they belong to."""

    add: ResidualAdd
    entry_norms: tuple[int, ...]
    partial_norms: tuple[int, ...]
    exit_norm: int | None
    inner_norms: tuple[int, ...]
    scales: tuple[Scale, ...]


@dataclass(frozen=True, slots=True)
class _BranchEntry:
    entry_norms: tuple[int, ...]
    partial_norms: tuple[int, ...]
    coefficient_norms: frozenset[int]
    """Norms of the coefficients with which parallel streams are mixed."""


@dataclass(frozen=True, slots=True)
class _BranchExit:
    exit_norm: int | None
    scales: tuple[Scale, ...]
    is_gated: bool


def place_norms(
    graph: Graph,
    norms: Mapping[int, Norm],
    *,
    adds: Adds,
    add: ResidualAdd,
    fed_by: int | None,
) -> NormPlacement:
    """Find the norms and scales on the branch of a residual add.

    Args:
        graph: recorded graph
        norms: all norms, by the node of their result
        adds: all residual adds
        add: the add in question
        fed_by: output of another branch that this one reads instead of the fork
    """
    entry = _find_entry(graph, norms, add=add, fed_by=fed_by)
    end = _find_exit(graph, norms, add=add, entry_norms=entry.entry_norms)
    add = replace(add, is_gated=add.is_gated or end.is_gated)
    entry_norms = entry.entry_norms
    if add.has_projection and not entry_norms and not entry.partial_norms:
        shared = _find_shared_entry_norm(
            graph, norms, adds=adds, fork=add.fork, has_exit_norm=end.exit_norm is not None
        )
        if shared is not None:
            entry_norms, fork = (shared,), norms[shared].source
            path = frozenset(graph.nodes_between(fork, add.branch))
            add = replace(add, fork=fork, path=path)
    placed = {*entry_norms, *entry.partial_norms, *entry.coefficient_norms, end.exit_norm, add.fork}
    inner_norms = tuple(i for i in sorted(add.path) if i in norms and i not in placed)
    return NormPlacement(
        add, entry_norms, entry.partial_norms, end.exit_norm, inner_norms, end.scales
    )


def _find_entry(
    graph: Graph, norms: Mapping[int, Norm], *, add: ResidualAdd, fed_by: int | None
) -> _BranchEntry:
    """Follow every path from the fork into the branch, up to a norm or an operation that mixes."""
    start = add.fork if fed_by is None else max(add.fork, fed_by)
    visited: set[int] = set()
    waiting = [i for i in graph[start].users if i in add.path]
    first_norms: list[int] = []
    has_bare_path = False
    while waiting:
        index = waiting.pop()
        if index in visited or index not in add.path:
            continue
        visited.add(index)
        if index in norms:
            first_norms.append(index)
        elif index == add.branch or _is_branch_start(graph, norms, add=add, index=index):
            has_bare_path = True
        else:
            waiting += [i for i in graph[index].users if i in add.path]
    coefficients: set[int] = set()
    if add.is_mixed:
        coefficients = find_coefficient_norms(graph, norms, first=first_norms, start=start)
    own = tuple(i for i in first_norms if i not in coefficients)
    # Gates and mixing coefficients may read the stream without a norm.
    if own and (not has_bare_path or add.is_gated or add.is_mixed):
        return _BranchEntry(own, (), frozenset(coefficients))
    return _BranchEntry((), own, frozenset(coefficients))


def _is_branch_start(
    graph: Graph, norms: Mapping[int, Norm], *, add: ResidualAdd, index: int
) -> bool:
    """Return whether a node is the first operation of the sub-layer, and not part of a norm."""
    node = graph[index]
    if is_mixing(node.op):
        return index not in add.mixing_nodes and not _is_norm_statistic(graph, norms, index=index)
    if node.op not in NONLINEAR:
        return False
    own = (n for n in norms.values() if n.source == add.fork and n.node in add.path)
    return not any(index in _norm_inner_nodes(graph, norm) for norm in own)


def _is_norm_statistic(graph: Graph, norms: Mapping[int, Norm], *, index: int) -> bool:
    """Return whether a product computes the mean or the length inside a norm written by hand."""
    return any(
        norm.by_hand and index in _norm_inner_nodes(graph, norm)
        for norm in norms.values()
        if index < norm.node < index + MAX_NORM_NODES
    )


def _norm_inner_nodes(graph: Graph, norm: Norm) -> set[int]:
    return graph.nodes_between(norm.source, norm.node) - {norm.source, norm.node}


def _find_shared_entry_norm(
    graph: Graph, norms: Mapping[int, Norm], *, adds: Adds, fork: int, has_exit_norm: bool
) -> int | None:
    """Return the norm before both a branch and its projected shortcut (pre-activation ResNet).

    The norm counts if it reads a residual add, or if the branch has no norm at its end. Otherwise
    it belongs to the stem of the network.
    """
    index = fork
    for _ in range(MAX_PREACTIVATION_STEPS):
        if index in norms:
            reads_add = graph.trace_back(norms[index].source)[-1][0] in adds
            return index if reads_add or not has_exit_norm else None
        node = graph[index]
        if len(node.inputs) != 1 or not (node.op in PASS_THROUGH or node.op in NONLINEAR):
            return None
        index = node.inputs[0]
    return None


def _find_exit(
    graph: Graph, norms: Mapping[int, Norm], *, add: ResidualAdd, entry_norms: tuple[int, ...]
) -> _BranchExit:
    """Walk back from the end of the branch over scales, gates and biases to a norm."""
    index = add.branch
    exit_norm: int | None = None
    is_gated = False
    scales: list[Scale] = list(add.branch_scales)
    for _ in range(MAX_EXIT_STEPS):
        if index in norms:
            if _is_exit_norm(graph, add, index=index) and index not in entry_norms:
                exit_norm = index
            scales = _drop_norm_scales(graph, norms[index], scales=scales)
            break
        gated = find_gated_stream(graph, index)
        gated = _find_conditioned_branch(graph, add, index=index) if gated is None else gated
        if gated is not None and gated in add.path and not is_mixing(graph[index].op):
            is_gated = True
            index = gated
            continue
        if graph[index].op in ("add", "sub") and len(graph[index].inputs) == 1:
            index = graph[index].inputs[0]
            continue
        step = graph.parent_through_scale(index)
        if step is None:
            break
        if step[1] is not None:
            scales.append(step[1])
        index = step[0]
    own_scales = tuple(s for s in scales if s.node not in add.mixing_nodes)
    return _BranchExit(exit_norm, own_scales, is_gated)


def _is_exit_norm(graph: Graph, add: ResidualAdd, *, index: int) -> bool:
    """Return whether a norm is on the branch, after an operation that mixes."""
    return index in add.path and graph.has_mixing(
        graph.nodes_between(add.fork, index), exclude=add.fork
    )


def _drop_norm_scales(graph: Graph, norm: Norm, *, scales: list[Scale]) -> list[Scale]:
    """Drop the scales that belong to the exit norm: its gain, and sqrt(dim) of a unit norm."""
    gains = find_gain_nodes(graph, norm)
    gain = max((i for i, scale in enumerate(scales) if scale.node in gains), default=None)
    return [
        scale
        for i, scale in enumerate(scales)
        if i != gain and not _is_unit_rms_scale(graph, norm, scale=scale)
    ]


def _is_unit_rms_scale(graph: Graph, norm: Norm, *, scale: Scale) -> bool:
    """Return whether a scale is the sqrt(dim) that turns a unit vector into an RMS norm."""
    width = graph[norm.source].shape[-1] if graph[norm.source].shape else 1
    value = scale.value or 0
    return norm.kind == "rms" and scale.kind == "constant" and abs(value**2 - width) < 1e-2 * width


def _find_conditioned_branch(graph: Graph, add: ResidualAdd, *, index: int) -> int | None:
    """Return the branch in `gate * branch`, if a matrix computes the gate from another input than
    the stream (adaLN-Zero)."""
    node = graph[index]
    if node.op != "mul" or len(node.inputs) != 2 or index in add.mixing_nodes:
        return None
    own = [i for i in node.inputs if i in add.path]
    gates = [i for i in node.inputs if i not in add.path and graph[i].last_mixing >= 0]
    return own[0] if len(own) == len(gates) == 1 else None
