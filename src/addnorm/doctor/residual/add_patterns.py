"""Forms of an addition: the calls that add streams, and the residual add each of them makes.

A model may add by `x + f`, `x += f`, `torch.add`, `addmm`, `index_add`, a GRU cell, or by stacking
and reducing:

    model code                                 what this module returns
    x + f                                      find_add_in_call  -> AddMatch(shortcut=x, branch=f)
    f - x                                      find_add_in_call  -> None, the stream is subtracted
    torch.addmm(x, h, weight)                  find_add_in_call  -> AddMatch(shortcut=x, branch=h)
    torch.stack([x, f]).sum(0)                 find_stacked_sum  -> StackedSum(streams=(x, f))
    einsum("s,sbtd->btd", w, stack([x, f]))    find_stacked_sum, then find_weighted_add

`start_learned_streams` covers streams that begin with weights, such as the learned queries of a
DETR decoder or the latents of a Perceiver. Their nodes do not depend on the input, so the graph
does not treat them as activations at first. They become a stream when a branch that depends on
them is added to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from addnorm.doctor.graph.contractions import contraction_axes, operand_shape
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Operand
from addnorm.doctor.graph.ops import ATTENTION, CASTS
from addnorm.doctor.residual.residual_adds import (
    AddMatch,
    Adds,
    ResidualAdd,
    find_fused_add,
    find_plain_add,
    find_residual_add,
)
from addnorm.doctor.residual.shortcut_steps import is_sublayer_output

MAX_STACK_STEPS = 8
"""Steps from a reduction back to the stack that it reduces."""


@dataclass(frozen=True, slots=True)
class StackedSum:
    """Streams that are stacked along an axis and summed over it."""

    streams: tuple[int, ...]
    stack: int
    axis: int
    is_weighted: bool
    """Whether they are multiplied by anything but a constant 1 before the sum."""


def find_add_in_call(
    graph: Graph, adds: Adds, *, op: str, operands: Sequence[Operand]
) -> AddMatch | None:
    """Return the residual add that a call makes, or None."""
    active = [o for o in operands if o.kind == "node" and graph[o.node].active]
    if len(active) < 2:
        return None
    one, other = active[0].node, active[1].node
    match: AddMatch | None = None
    if op in ("addmm", "baddbmm"):
        match = find_fused_add(graph, one, branch=other) if operands[0] is active[0] else None
    elif op == "gru_cell":
        match = find_fused_add(graph, other, branch=one)
    elif op in ("index_add", "scatter_add"):
        match = find_plain_add(graph, adds, shortcut=one, branch=other)
    elif one != other:
        match = find_residual_add(graph, adds, one=one, other=other)
    minuend = {"sub": one, "rsub": other}.get(op)
    if match is None or (minuend is not None and match.branch == minuend):
        return None  # f(x) - x subtracts the stream
    if minuend is not None and not graph.has_weights(match.path - {match.fork}):
        return None  # x - moving_average(x): a subtracted branch must have weights
    return replace(match, is_gated=True) if op == "gru_cell" else match


def start_learned_streams(
    graph: Graph, adds: Adds, *, operands: Sequence[Operand]
) -> dict[int, ResidualAdd]:
    """Mark weights as a stream if a branch that depends on them is about to be added to them.

    Args:
        graph: graph up to the call; nodes of the new stream are marked in it
        adds: residual adds found so far
        operands: operands of the call

    Returns:
        Residual adds on the part of the new stream that was recorded before, by node.
    """
    nodes = [o.node for o in operands if o.kind == "node"]
    learned = [i for i in nodes if graph[i].learned]
    active = [i for i in nodes if graph[i].active]
    if len(learned) != 1 or len(active) != 1 or graph[learned[0]].size < graph[active[0]].size:
        return {}
    if graph[active[0]].last_mixing < learned[0]:
        return {}  # nothing mixes after the weights were used, so there is no branch
    path = graph.all_nodes_between(learned[0], active[0])
    if not path or any(i in adds for i in path) or not graph.has_mixing(path):
        return {}
    graph.mark_as_stream(path)
    return _find_earlier_adds(graph, adds, start=learned[0])


def _find_earlier_adds(graph: Graph, adds: Adds, *, start: int) -> dict[int, ResidualAdd]:
    """Find the adds of learned queries to their own self-attention, before they read the input."""
    earlier: dict[int, ResidualAdd] = {}
    for index in sorted(graph.learned_ancestors(start)):
        operands = [o.node for o in graph[index].operands if o.kind == "node"]
        if graph[index].op != "add" or len(operands) != 2:
            continue
        shortcut, branch = sorted(operands, key=lambda operand: _has_attention(graph, operand))
        if _has_attention(graph, shortcut) or not _has_attention(graph, branch):
            continue
        if not graph.all_nodes_between(shortcut, branch):
            continue
        graph.mark_as_stream(graph.all_nodes_between(shortcut, start))
        match = find_residual_add(graph, {**adds, **earlier}, one=shortcut, other=branch)
        if match is not None:
            earlier[index] = ResidualAdd.from_match(
                match, node=index, op="add", module=graph[index].path
            )
    return earlier


def _has_attention(graph: Graph, index: int) -> bool:
    return any(graph[i].op in ATTENTION for i in graph.learned_ancestors(index))


def find_stacked_sum(
    graph: Graph, op: str, *, operands: Sequence[Operand], detail: dict[str, Any]
) -> StackedSum | None:
    """Return the stacked streams that a call sums over, or None."""
    if op in ("sum", "mean"):
        dim = detail.get("dim")
        dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
        if not isinstance(dim, int) or not operands or operands[0].kind != "node":
            return None
        return _trace_to_stack(graph, operands[0].node, dim=dim, is_weighted=False)
    if op not in ("einsum", "matmul", "tensordot") or len(operands) < 2:
        return None
    shapes = [operand_shape(graph, o) for o in operands[:2]]
    for position, operand in enumerate(operands[:2]):
        if operand.kind == "node" and graph[operand.node].active:
            axes = contraction_axes(op, position, shapes=shapes, detail=detail)
            if axes is None or len(axes.summed) != 1:
                continue
            weights = operands[1 - position]
            is_plain = weights.kind == "constant" and weights.value == 1
            stacked = _trace_to_stack(
                graph, operand.node, dim=axes.summed[0], is_weighted=not is_plain
            )
            if stacked is not None:
                return stacked
    return None


def _trace_to_stack(graph: Graph, index: int, *, dim: int, is_weighted: bool) -> StackedSum | None:
    """Walk back to the stack, over casts and factors that keep its shape."""
    shape = graph[index].shape
    axis = dim % len(shape) if shape else 0
    for _ in range(MAX_STACK_STEPS):
        node = graph[index]
        if node.shape != shape or not node.inputs:
            return None
        if node.op in ("stack", "cat"):
            stack_dim = node.detail.get("dim", 0)
            if not isinstance(stack_dim, int) or stack_dim % len(shape) != axis:
                return None
            streams = [o.node for o in node.operands if o.kind == "node" and graph[o.node].active]
            is_repeated = len(set(streams)) < len(streams)
            if len(streams) < 2 or len(streams) != shape[axis] or is_repeated:
                return None
            return StackedSum(tuple(streams), index, axis, is_weighted)
        if node.op == "mul":
            is_weighted = True
            index = max(node.inputs, key=lambda i: (graph[i].shape == shape, -i))
        elif node.op in CASTS:
            index = node.inputs[0]
        else:
            return None
    return None


def find_weighted_add(
    graph: Graph, adds: Adds, *, stacked_sum: StackedSum, known_mixtures: set[int]
) -> AddMatch | None:
    """Return the residual add that a weighted sum of streams makes: its newest term is the branch.

    Args:
        graph: graph up to the sum
        adds: residual adds found so far
        stacked_sum: terms of the sum
        known_mixtures: earlier weighted sums, which the branch may read
    """
    known_branches = {add.branch for add in adds.values() if add.is_weighted}
    new = [
        i
        for i in stacked_sum.streams
        if i not in adds and i not in known_branches and is_sublayer_output(graph, i)
    ]
    if not new:
        return None
    branch = max(new)
    older = sorted((i for i in {*stacked_sum.streams, *known_mixtures} if i < branch), reverse=True)
    fork = next((i for i in older if graph.reaches(i, branch)), None)
    if fork is None:
        return None
    path = frozenset(graph.nodes_between(fork, branch))
    if not graph.has_mixing(path, exclude=fork):
        return None
    shortcut = max(i for i in stacked_sum.streams if i != branch)
    return AddMatch(fork=fork, shortcut=shortcut, branch=branch, path=path, is_weighted=True)
