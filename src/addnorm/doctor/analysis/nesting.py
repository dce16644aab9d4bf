"""Nesting of residual adds: adds inside a branch, long skips, and branches added twice.

x + g(h + f(h)), h = linear(x)     the add in the branch is an inner add
x + blocks(x)                      the branch is a whole stream: a long skip over its adds
x = norm(x + f), y = y + f         the branch f is added to two streams: the second is a dual

Example of the first line, with g and f as linear layers:

    model code               nodes of the graph
    h = linear(x)            1 linear(0)
    h = h + f(h)             2 linear(1), 3 add(1, 2)
    y = x + g(h)             4 linear(3), 5 add(0, 4)

Both sums are residual adds. Node 3 is in the path of the branch of node 5, so its `outer_add` is 5,
and `ModelAnalysis.blocks` lists node 5 only.
"""

from collections.abc import Mapping
from dataclasses import replace

from addnorm.doctor.analysis.branch_kinds import BranchKind
from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.analysis.results import NestedAdd, PlacedAdd, extend
from addnorm.doctor.analysis.streams import StreamLink, find_stream_link
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.residual.residual_adds import ResidualAdd
from addnorm.doctor.residual.shortcut_steps import is_sublayer_output

MAX_SKIP_STEPS = 200
"""Maximum number of steps along the stream that a long skip spans."""


def nest_adds(
    graph: Graph,
    norms: Mapping[int, Norm],
    *,
    placed: list[PlacedAdd],
    kinds: Mapping[int, BranchKind],
    parallel: set[int],
) -> list[NestedAdd]:
    """Relate each residual add to the others.

    Args:
        graph: recorded graph
        norms: all norms
        placed: adds in the order of execution
        kinds: kind of each branch, by the node of its add
        parallel: nodes of the adds whose branch shares its fork with another one
    """
    nested = _find_nesting(graph, norms, placed=placed, kinds=kinds, parallel=parallel)
    nested = _find_duals(graph, nested)
    # Both branches of a parallel pair carry the flag, not only the second.
    first_of_pair = {n.add.parallel_to for n in nested if not n.is_dual and n.fed_by is None}
    return [replace(n, is_parallel=True) if n.add.node in first_of_pair else n for n in nested]


def _find_nesting(
    graph: Graph,
    norms: Mapping[int, Norm],
    *,
    placed: list[PlacedAdd],
    kinds: Mapping[int, BranchKind],
    parallel: set[int],
) -> list[NestedAdd]:
    """Find adds inside branches and long skips."""
    adds = {p.add.node: p.add for p in placed}
    links = {p.add.node: p.link for p in placed}
    outer: dict[int, int] = {}
    skipped: dict[int, int] = {}
    for p in placed:
        add = p.add
        inside = [
            other
            for other in placed
            if other.add.node in add.path
            and other.add.node not in (add.node, add.fork)
            and not other.is_attention_score
        ]
        nodes = {other.add.node for other in inside}
        chained = [
            other
            for other in inside
            if links[other.add.node].previous in nodes and other.add.parallel_to is None
        ]
        # A branch that reads a stream with adds, but also bypasses it, is not a skip over them.
        has_bypass = bool(chained) and graph.has_path_avoiding(add.fork, add.branch, blocked=nodes)
        if (chained and not has_bypass) or _is_long_skip(graph, norms, add=add, adds=adds):
            skipped[add.node] = len(inside)
            if not is_sublayer_output(graph, add.branch):
                # The stream continues along the branch; the shortcut is the long skip.
                links[add.node] = find_stream_link(
                    graph, adds, norms=norms, add=add, start=add.branch
                )
            continue
        for other in inside:
            has_own_fork = other.add.fork != add.fork or other.add.parallel_to is not None
            if has_own_fork and not (
                has_bypass and _continues_outside(graph, adds, inner=other.add, add=add)
            ):
                outer[other.add.node] = add.node
    return [
        _make_nested(
            p, kinds[p.add.node], link=links[p.add.node], outer=outer.get(p.add.node),
            skipped=skipped.get(p.add.node), is_parallel=p.add.node in parallel,
        )
        for p in placed
    ]  # fmt: skip


def _make_nested(
    placed: PlacedAdd,
    kind: BranchKind,
    *,
    link: StreamLink,
    outer: int | None,
    skipped: int | None,
    is_parallel: bool,
) -> NestedAdd:
    """Build the record of one add; the branch of a long skip has neither kind nor norms."""
    is_long_skip = skipped is not None
    return extend(
        NestedAdd,
        placed,
        link=link,
        kind="other" if is_long_skip else kind.name,
        steps=kind.steps,
        inner_norms=() if is_long_skip else placed.inner_norms,
        outer_add=outer,
        skipped_adds=skipped or 0,
        is_dual=False,
        is_parallel=is_parallel,
    )


def _continues_outside(
    graph: Graph, adds: Mapping[int, ResidualAdd], *, inner: ResidualAdd, add: ResidualAdd
) -> bool:
    """Return whether the stream of an inner add has adds outside the branch that reads it."""
    visited, waiting = {add.node}, [inner.node]
    while waiting:
        for user in graph[waiting.pop()].users:
            if user in visited:
                continue
            if user in adds and user not in add.path:
                return True
            visited.add(user)
            waiting.append(user)
    return False


def _is_long_skip(
    graph: Graph, norms: Mapping[int, Norm], *, add: ResidualAdd, adds: Mapping[int, ResidualAdd]
) -> bool:
    """Return whether the branch is a stream that leads back to the fork by adds and norms alone."""
    index = graph.trace_back(add.branch)[-1][0]
    if index not in adds or index == add.parallel_to:
        return False
    for _ in range(MAX_SKIP_STEPS):
        if index == add.fork:
            return True
        if index in adds:
            index = adds[index].fork
        elif index in norms:
            index = norms[index].source
        elif (step := graph.parent_through_scale(index)) is not None:
            index = step[0]
        elif graph[index].op in ("add", "sub") and len(graph[index].inputs) == 1:
            index = graph[index].inputs[0]
        else:
            return False
    return False


def _find_duals(graph: Graph, nested: list[NestedAdd]) -> list[NestedAdd]:
    """Mark every add whose branch was added to another stream before."""
    first: dict[int, NestedAdd] = {}
    marked = []
    for n in nested:
        origin = graph.trace_back(n.add.branch)[-1][0]
        if origin in first:
            n = replace(n, is_dual=True, kind=first[origin].kind)
            if n.add.parallel_to is not None:
                n = replace(
                    n,
                    link=replace(n.link, previous=n.add.parallel_to),
                    skipped_adds=0,
                    inner_norms=(),
                    is_parallel=False,
                )
        first.setdefault(origin, n)
        marked.append(n)
    return marked
