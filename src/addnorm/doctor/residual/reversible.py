"""Reversible stacks: two streams, or two halves of one, whose branches read each other.

    y1 = x1 + f(x2)
    y2 = x2 + g(y1)

While both streams still hold the same tensor, `g(y1)` looks like a branch of `x` with an inner sum.
Only later operations decide: in a reversible stack `y1` continues as a separate stream, or is
concatenated with `y2`. Therefore this runs after the forward pass, on all residual adds:

    model code               nodes of the graph
    y1 = x + f(x)            1 linear(0), 2 add(0, 1)
    y2 = x + g(y1)           3 linear(2), 4 add(0, 3)
    cat([y1, y2], -1)        5 cat(2, 4)

    recorded                 2: fork 0, 4: fork 0
    redirect_crossed_adds    2: fork 0, 4: fork 2, crossing "streams"
"""

from collections.abc import Mapping
from dataclasses import replace

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import SLICES
from addnorm.doctor.residual.residual_adds import Adds, ResidualAdd


def redirect_crossed_adds(graph: Graph, adds: Adds) -> dict[int, ResidualAdd]:
    """Return the adds with the fork of each crossed branch moved to the stream that it reads."""
    redirected = dict(adds)
    for index in adds:
        add = redirected[index]
        other = add.fork if add.is_crossed else _find_inner_add(graph, redirected, add=add)
        if other is None:
            continue
        is_concatenated = _is_concatenated(graph, other, other=index)
        is_continued = is_concatenated or any(
            _is_continued_by(graph, later, one=other, other=index) for later in redirected.values()
        )
        if is_continued or add.is_crossed:
            shortcut_start = graph[graph.trace_back(add.shortcut)[-1][0]]
            is_half = is_concatenated and shortcut_start.op in SLICES
            redirected[index] = replace(
                add,
                fork=other,
                path=frozenset(graph.nodes_between(other, add.branch)),
                crossing="halves" if is_half else "streams",
            )
    return redirected


def _find_inner_add(graph: Graph, adds: Adds, *, add: ResidualAdd) -> int | None:
    """Return the sum with the same fork that every path of a branch crosses."""
    other = max((i for i in add.path & set(adds) if i < add.branch), default=None)
    is_plain = not add.is_mixed and add.parallel_to is None and add.difference_node is None
    if not is_plain or other is None or other == add.fork or adds[other].fork != add.fork:
        return None
    return None if graph.has_path_avoiding(add.fork, add.branch, blocked={other}) else other


def _is_continued_by(graph: Graph, later: ResidualAdd, *, one: int, other: int) -> bool:
    """Return whether a later branch reads the sum `other` and is added to the sum `one`."""
    return other in later.path and one in (i for i, _ in graph.trace_back(later.shortcut))


def _is_concatenated(graph: Graph, one: int, *, other: int) -> bool:
    return any(graph[user].op == "cat" and other in graph[user].inputs for user in graph[one].users)


def is_merge(graph: Graph, adds: Mapping[int, ResidualAdd], *, add: ResidualAdd) -> bool:
    """Return whether an addition only sums the streams of a reversible pair, as at their end."""
    last = adds.get(graph.trace_back(add.branch)[-1][0])
    if last is None or not last.is_crossed:
        return False
    return last.fork in (i for i, _ in graph.trace_back(add.shortcut))
