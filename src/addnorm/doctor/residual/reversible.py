"""Reversible stacks: y1 = x1 + f(x2), y2 = x2 + g(y1), two streams or two halves of one.

While both still hold the same, g(y1) looks like a branch of x with a sum inside. What comes later
tells: y1 goes on, as a stream of its own or beside y2.
"""

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import SLICES
from addnorm.doctor.residual.residual_adds import ResidualAdd


def mark_crossed_adds(graph: Graph, adds: dict[int, ResidualAdd]) -> None:
    """Let a branch that reads the other stream of a pair begin there."""
    for index, join in adds.items():
        other = join.fork if join.is_crossed else _find_inner_add(graph, adds, add=join)
        if other is None:
            continue
        beside = _is_concatenated(graph, other, other=index)
        goes_on = beside or any(
            _is_continued_by(graph, later, one=other, other=index) for later in adds.values()
        )
        if goes_on or join.is_crossed:
            join.fork, join.path = other, graph.nodes_between(other, join.branch)
            join.is_half = beside and graph[graph.trace_back(join.shortcut)[-1][0]].op in SLICES
            join.is_crossed = True


def _find_inner_add(graph: Graph, adds: dict[int, ResidualAdd], *, add: ResidualAdd) -> int | None:
    """The sum of the same fork through which every way of a branch leads."""
    other = max((i for i in add.path & set(adds) if i < add.branch), default=-1)
    plain = not (add.is_mixed or add.parallel_to >= 0 or add.difference_node >= 0)
    if not plain or other in (-1, add.fork) or adds[other].fork != add.fork:
        return None
    return None if graph.has_path_avoiding(add.fork, add.branch, blocked={other}) else other


def _is_continued_by(graph: Graph, later: ResidualAdd, *, one: int, other: int) -> bool:
    """Whether a later branch that read one sum is added to the other."""
    return other in later.path and one in (i for i, _ in graph.trace_back(later.shortcut))


def _is_concatenated(graph: Graph, one: int, *, other: int) -> bool:
    """Whether two sums are put side by side."""
    return any(graph[kid].op == "cat" and other in graph[kid].inputs for kid in graph[one].users)


def is_merge(graph: Graph, adds: dict[int, ResidualAdd], *, add: ResidualAdd) -> bool:
    """Whether a sum only adds up both streams of a pair, as at their end."""
    last = adds.get(graph.trace_back(add.branch)[-1][0])
    if last is None or not last.is_crossed:
        return False
    return last.fork in (i for i, _ in graph.trace_back(add.shortcut))
