"""Reversible stacks: y1 = x1 + f(x2), y2 = x2 + g(y1), two streams or two halves of one.

While both still hold the same, g(y1) looks like a branch of x with a sum inside. What comes later
tells: y1 goes on, as a stream of its own or beside y2.
"""

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import SLICES
from addnorm.doctor.residual.residual_adds import Join


def cross(graph: Graph, joins: dict[int, Join]) -> None:
    """Let a branch that reads the other stream of a pair begin there."""
    for index, join in joins.items():
        other = join.fork if join.crossed else _inside(graph, joins, join=join)
        if other is None:
            continue
        beside = _beside(graph, other, other=index)
        goes_on = beside or any(
            _continues(graph, later, one=other, other=index) for later in joins.values()
        )
        if goes_on or join.crossed:
            join.fork, join.path = other, graph.between(other, join.branch)
            join.half = beside and graph[graph.chain(join.shortcut)[-1][0]].op in SLICES
            join.crossed = True


def _inside(graph: Graph, joins: dict[int, Join], *, join: Join) -> int | None:
    """The sum of the same fork through which every way of a branch leads."""
    other = max((i for i in join.path & set(joins) if i < join.branch), default=-1)
    plain = not (join.mixed or join.via >= 0 or join.towards >= 0)
    if not plain or other in (-1, join.fork) or joins[other].fork != join.fork:
        return None
    return None if graph.avoids(join.fork, join.branch, closed={other}) else other


def _continues(graph: Graph, later: Join, *, one: int, other: int) -> bool:
    """Whether a later branch that read one sum is added to the other."""
    return other in later.path and one in (i for i, _ in graph.chain(later.shortcut))


def _beside(graph: Graph, one: int, *, other: int) -> bool:
    """Whether two sums are put side by side."""
    return any(graph[kid].op == "cat" and other in graph[kid].ins for kid in graph[one].kids)


def merges(graph: Graph, joins: dict[int, Join], *, join: Join) -> bool:
    """Whether a sum only adds up both streams of a pair, as at their end."""
    last = joins.get(graph.chain(join.branch)[-1][0])
    if last is None or not last.crossed:
        return False
    return last.fork in (i for i, _ in graph.chain(join.shortcut))
