"""Spellings of an addition: which streams a call adds up, and which residual join that makes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from addnorm.doctor.graph.contractions import axes_of, shape_of
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Operand
from addnorm.doctor.graph.ops import ATTENTION, CASTS
from addnorm.doctor.residual.residual_adds import Join, find, fresh, fused, plain

BACK_TO_STACK = 8
"""Steps from a sum back to the stack that it runs over."""


@dataclass(frozen=True, slots=True)
class Stacked:
    """Streams laid side by side and summed over that axis."""

    parts: tuple[int, ...]
    stack: int
    axis: int
    weighted: bool
    """Whether they are multiplied by anything but a constant 1 before."""


def joined(
    graph: Graph, joins: dict[int, Join], *, op: str, operands: Sequence[Operand]
) -> Join | None:
    """The join that one call makes, if it makes one."""
    _wake(graph, joins, operands=operands)
    live = [o for o in operands if o.kind == "node" and graph[o.node].active]
    if len(live) < 2:
        return None
    one, other = live[0].node, live[1].node
    join: Join | None = None
    if op in ("addmm", "baddbmm"):
        join = fused(graph, one, branch=other) if operands[0] is live[0] else None
    elif op == "gru_cell":
        join = fused(graph, other, branch=one)
    elif op in ("index_add", "scatter_add"):
        join = plain(graph, joins, shortcut=one, branch=other)
    elif one != other:
        join = find(graph, joins, one=one, other=other)
    minuend = {"sub": one, "rsub": other}.get(op)
    if join is None or (minuend is not None and join.branch == minuend):
        return None  # f(x) - x takes the stream away
    if minuend is not None and not graph.learns(join.path - {join.fork}):
        return None  # x - its moving average
    join.gated |= op == "gru_cell"
    return join


def _wake(graph: Graph, joins: dict[int, Join], *, operands: Sequence[Operand]) -> None:
    """Learned queries or latents to which a branch of their own is added begin a stream."""
    nodes = [o.node for o in operands if o.kind == "node"]
    asleep = [i for i in nodes if graph[i].learned]
    awake = [i for i in nodes if graph[i].active]
    if len(asleep) != 1 or len(awake) != 1 or graph[asleep[0]].size < graph[awake[0]].size:
        return
    if graph[awake[0]].mixed < asleep[0]:
        return  # no branch
    way = graph.made_of(asleep[0], awake[0])
    if way and not any(i in joins for i in way) and graph.mixing(way):
        graph.awaken(way)
        _before(graph, joins, start=asleep[0])


def _before(graph: Graph, joins: dict[int, Join], *, start: int) -> None:
    """Sums by which queries became what they are when they first look at the input: what they
    begin with, and what an attention among themselves made."""
    for index in sorted(graph.learned_behind(start)):
        sides = [o.node for o in graph[index].operands if o.kind == "node"]
        if graph[index].op != "add" or len(sides) != 2:
            continue
        shortcut, branch = sorted(sides, key=lambda side: _looked(graph, side))
        if _looked(graph, shortcut) or not _looked(graph, branch):
            continue
        if not graph.made_of(shortcut, branch):
            continue
        graph.awaken(graph.made_of(shortcut, start))
        join = find(graph, joins, one=shortcut, other=branch)
        if join is not None:
            join.node, join.op, join.module = index, "add", graph[index].path
            joins[index] = join


def _looked(graph: Graph, index: int) -> bool:
    """Whether an attention stands behind a node that is learned."""
    return any(graph[i].op in ATTENTION for i in graph.learned_behind(index))


def stacked(
    graph: Graph, op: str, *, operands: Sequence[Operand], detail: dict[str, Any]
) -> Stacked | None:
    """The streams that a call adds up, where they were stacked before."""
    if op in ("sum", "mean"):
        dim = detail.get("dim")
        dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
        if not isinstance(dim, int) or not operands or operands[0].kind != "node":
            return None
        return _traced(graph, operands[0].node, dim=dim, weighted=False)
    if op not in ("einsum", "matmul", "tensordot") or len(operands) < 2:
        return None
    shapes = [shape_of(graph, o) for o in operands[:2]]
    for place, operand in enumerate(operands[:2]):
        if operand.kind == "node" and graph[operand.node].active:
            found_axes = axes_of(op, place, shapes=shapes, detail=detail)
            if found_axes is None or len(found_axes.summed) != 1:
                continue
            weights = operands[1 - place]
            plain = weights.kind == "constant" and weights.value == 1
            axis = found_axes.summed[0]
            found = _traced(graph, operand.node, dim=axis, weighted=not plain)
            if found is not None:
                return found
    return None


def _traced(graph: Graph, index: int, *, dim: int, weighted: bool) -> Stacked | None:
    """Back to the stack, over casts and weights that leave its shape alone."""
    shape = graph[index].shape
    axis = dim % len(shape) if shape else 0
    for _ in range(BACK_TO_STACK):
        node = graph[index]
        if node.shape != shape or not node.ins:
            return None
        if node.op in ("stack", "cat"):
            place = node.detail.get("dim", 0)
            if not isinstance(place, int) or place % len(shape) != axis:
                return None
            parts = [o.node for o in node.operands if o.kind == "node" and graph[o.node].active]
            if len(parts) < 2 or len(parts) != shape[axis] or len(set(parts)) < len(parts):
                return None
            return Stacked(tuple(parts), index, axis, weighted)
        if node.op == "mul":
            weighted = True
            index = max(node.ins, key=lambda i: (graph[i].shape == shape, -i))
        elif node.op in CASTS:
            index = node.ins[0]
        else:
            return None
    return None


def mixture(
    graph: Graph, joins: dict[int, Join], *, found: Stacked, known: set[int]
) -> Join | None:
    """The join that a weighted sum of streams makes: the newest of them is a branch by itself.

    known: earlier mixtures, from which the branch may have been made.
    """
    taken = {join.branch for join in joins.values() if join.weighed}
    new = [i for i in found.parts if i not in joins and i not in taken and fresh(graph, i)]
    if not new:
        return None
    branch = max(new)
    older = sorted((i for i in {*found.parts, *known} if i < branch), reverse=True)
    fork = next((i for i in older if graph.reaches(i, branch)), None)
    if fork is None:
        return None
    path = graph.between(fork, branch)
    if not graph.mixing(path, but=fork):
        return None
    shortcut = max(i for i in found.parts if i != branch)
    return Join(fork, shortcut, branch, path, weighed=True)
