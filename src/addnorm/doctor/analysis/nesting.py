"""Joins that stand inside others: small ones in a branch, and skips over many layers."""

from addnorm.doctor.analysis.results import Anatomy, Reading
from addnorm.doctor.analysis.streams import link
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.residual.residual_adds import Join, fresh


def nest(anatomy: Anatomy, joins: dict[int, Join]) -> None:
    """Joins inside the branch of another: small ones are inner, chains mean a long skip."""
    by_node = {r.join.node: r for r in anatomy.readings}
    for reading in anatomy.readings:
        join = reading.join
        inside = [by_node[i] for i in join.path if i in by_node and i not in (join.node, join.fork)]
        inside = [r for r in inside if not r.score]
        nodes = {r.join.node for r in inside}
        chained = [r for r in inside if r.link.before in nodes and r.join.via < 0]
        beside = bool(chained) and anatomy.graph.avoids(join.fork, join.branch, closed=nodes)
        if (chained and not beside) or _leaps(anatomy, join, by_node=by_node):
            reading.around = len(inside)
            reading.kind = "other"
            reading.inner = []
            if not fresh(anatomy.graph, join.branch):
                # The stream goes on along the branch; what comes from below is the skip.
                reading.link = link(
                    anatomy.graph, joins, norms=anatomy.norms, join=join, start=join.branch
                )
        else:
            for inner in inside:
                own = inner.join.fork != join.fork or inner.join.via >= 0
                if own and not (
                    beside and _goes_on(anatomy.graph, by_node, inner=inner, join=join)
                ):
                    inner.inside = join.node


def _goes_on(graph: Graph, by_node: dict[int, Reading], *, inner: Reading, join: Join) -> bool:
    """Whether a stream that a branch reads has sums of its own outside that branch."""
    seen, waiting = {join.node}, [inner.join.node]
    while waiting:
        for kid in graph[waiting.pop()].kids:
            if kid in seen:
                continue
            if kid in by_node and kid not in join.path:
                return True
            seen.add(kid)
            waiting.append(kid)
    return False


def _leaps(anatomy: Anatomy, join: Join, *, by_node: dict[int, Reading]) -> bool:
    """Whether the branch itself is a stream that goes back to the fork by sums and norms alone."""
    graph = anatomy.graph
    index = graph.chain(join.branch)[-1][0]
    if index not in by_node or index == join.via:
        return False
    for _ in range(200):
        if index == join.fork:
            return True
        if index in by_node:
            index = by_node[index].join.fork
        elif index in anatomy.norms:
            index = anatomy.norms[index].source
        elif (step := graph.back(index)) is not None:
            index = step[0]
        elif graph[index].op in ("add", "sub") and len(graph[index].ins) == 1:
            index = graph[index].ins[0]
        else:
            return False
    return False


def mark_duals(graph: Graph, readings: list[Reading]) -> None:
    """A branch that is added to two streams: the second is a dual of the first."""
    first: dict[int, Reading] = {}
    for reading in readings:
        origin = graph.chain(reading.join.branch)[-1][0]
        if origin in first:
            reading.dual, reading.kind = True, first[origin].kind
            if reading.join.via >= 0:
                reading.link.before, reading.around = reading.join.via, 0
                reading.inner, reading.parallel = [], False
        first.setdefault(origin, reading)
