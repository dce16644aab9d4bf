"""Spellings of an addition: which streams a call adds up, and which residual join that makes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from addnorm.doctor.graph.contractions import contraction_axes, operand_shape
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Operand
from addnorm.doctor.graph.ops import ATTENTION, CASTS
from addnorm.doctor.residual.residual_adds import (
    ResidualAdd,
    find_fused_add,
    find_plain_add,
    find_residual_add,
    is_sublayer_output,
)

MAX_STACK_STEPS = 8
"""Steps from a sum back to the stack that it runs over."""


@dataclass(frozen=True, slots=True)
class StackedSum:
    """Streams laid side by side and summed over that axis."""

    streams: tuple[int, ...]
    stack: int
    axis: int
    is_weighted: bool
    """Whether they are multiplied by anything but a constant 1 before."""


def find_add_in_call(
    graph: Graph, adds: dict[int, ResidualAdd], *, op: str, operands: Sequence[Operand]
) -> ResidualAdd | None:
    """The join that one call makes, if it makes one."""
    _mark_learned_streams(graph, adds, operands=operands)
    live = [o for o in operands if o.kind == "node" and graph[o.node].active]
    if len(live) < 2:
        return None
    one, other = live[0].node, live[1].node
    join: ResidualAdd | None = None
    if op in ("addmm", "baddbmm"):
        join = find_fused_add(graph, one, branch=other) if operands[0] is live[0] else None
    elif op == "gru_cell":
        join = find_fused_add(graph, other, branch=one)
    elif op in ("index_add", "scatter_add"):
        join = find_plain_add(graph, adds, shortcut=one, branch=other)
    elif one != other:
        join = find_residual_add(graph, adds, one=one, other=other)
    minuend = {"sub": one, "rsub": other}.get(op)
    if join is None or (minuend is not None and join.branch == minuend):
        return None  # f(x) - x takes the stream away
    if minuend is not None and not graph.has_weights(join.path - {join.fork}):
        return None  # x - its moving average
    join.is_gated |= op == "gru_cell"
    return join


def _mark_learned_streams(
    graph: Graph, adds: dict[int, ResidualAdd], *, operands: Sequence[Operand]
) -> None:
    """Learned queries or latents to which a branch of their own is added begin a stream."""
    nodes = [o.node for o in operands if o.kind == "node"]
    asleep = [i for i in nodes if graph[i].learned]
    awake = [i for i in nodes if graph[i].active]
    if len(asleep) != 1 or len(awake) != 1 or graph[asleep[0]].size < graph[awake[0]].size:
        return
    if graph[awake[0]].last_mixing < asleep[0]:
        return  # no branch
    way = graph.all_nodes_between(asleep[0], awake[0])
    if way and not any(i in adds for i in way) and graph.has_mixing(way):
        graph.mark_as_stream(way)
        _find_earlier_adds(graph, adds, start=asleep[0])


def _find_earlier_adds(graph: Graph, adds: dict[int, ResidualAdd], *, start: int) -> None:
    """Sums by which queries became what they are when they first look at the input: what they
    begin with, and what an attention among themselves made."""
    for index in sorted(graph.learned_ancestors(start)):
        sides = [o.node for o in graph[index].operands if o.kind == "node"]
        if graph[index].op != "add" or len(sides) != 2:
            continue
        shortcut, branch = sorted(sides, key=lambda side: _has_attention(graph, side))
        if _has_attention(graph, shortcut) or not _has_attention(graph, branch):
            continue
        if not graph.all_nodes_between(shortcut, branch):
            continue
        graph.mark_as_stream(graph.all_nodes_between(shortcut, start))
        join = find_residual_add(graph, adds, one=shortcut, other=branch)
        if join is not None:
            join.node, join.op, join.module = index, "add", graph[index].path
            adds[index] = join


def _has_attention(graph: Graph, index: int) -> bool:
    """Whether an attention stands behind a node that is learned."""
    return any(graph[i].op in ATTENTION for i in graph.learned_ancestors(index))


def find_stacked_sum(
    graph: Graph, op: str, *, operands: Sequence[Operand], detail: dict[str, Any]
) -> StackedSum | None:
    """The streams that a call adds up, where they were stacked before."""
    if op in ("sum", "mean"):
        dim = detail.get("dim")
        dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
        if not isinstance(dim, int) or not operands or operands[0].kind != "node":
            return None
        return _trace_to_stack(graph, operands[0].node, dim=dim, is_weighted=False)
    if op not in ("einsum", "matmul", "tensordot") or len(operands) < 2:
        return None
    shapes = [operand_shape(graph, o) for o in operands[:2]]
    for place, operand in enumerate(operands[:2]):
        if operand.kind == "node" and graph[operand.node].active:
            found_axes = contraction_axes(op, place, shapes=shapes, detail=detail)
            if found_axes is None or len(found_axes.summed) != 1:
                continue
            weights = operands[1 - place]
            plain = weights.kind == "constant" and weights.value == 1
            axis = found_axes.summed[0]
            found = _trace_to_stack(graph, operand.node, dim=axis, is_weighted=not plain)
            if found is not None:
                return found
    return None


def _trace_to_stack(graph: Graph, index: int, *, dim: int, is_weighted: bool) -> StackedSum | None:
    """Back to the stack, over casts and weights that leave its shape alone."""
    shape = graph[index].shape
    axis = dim % len(shape) if shape else 0
    for _ in range(MAX_STACK_STEPS):
        node = graph[index]
        if node.shape != shape or not node.inputs:
            return None
        if node.op in ("stack", "cat"):
            place = node.detail.get("dim", 0)
            if not isinstance(place, int) or place % len(shape) != axis:
                return None
            parts = [o.node for o in node.operands if o.kind == "node" and graph[o.node].active]
            if len(parts) < 2 or len(parts) != shape[axis] or len(set(parts)) < len(parts):
                return None
            return StackedSum(tuple(parts), index, axis, is_weighted)
        if node.op == "mul":
            is_weighted = True
            index = max(node.inputs, key=lambda i: (graph[i].shape == shape, -i))
        elif node.op in CASTS:
            index = node.inputs[0]
        else:
            return None
    return None


def find_weighted_add(
    graph: Graph, adds: dict[int, ResidualAdd], *, stacked_sum: StackedSum, known_mixtures: set[int]
) -> ResidualAdd | None:
    """The join that a weighted sum of streams makes: the newest of them is a branch by itself.

    known: earlier mixtures, from which the branch may have been made.
    """
    taken = {join.branch for join in adds.values() if join.is_weighted}
    new = [
        i
        for i in stacked_sum.streams
        if i not in adds and i not in taken and is_sublayer_output(graph, i)
    ]
    if not new:
        return None
    branch = max(new)
    older = sorted((i for i in {*stacked_sum.streams, *known_mixtures} if i < branch), reverse=True)
    fork = next((i for i in older if graph.reaches(i, branch)), None)
    if fork is None:
        return None
    path = graph.nodes_between(fork, branch)
    if not graph.has_mixing(path, exclude=fork):
        return None
    shortcut = max(i for i in stacked_sum.streams if i != branch)
    return ResidualAdd(fork, shortcut, branch, path, is_weighted=True)
