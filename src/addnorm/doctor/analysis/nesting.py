"""Joins that stand inside others: small ones in a branch, and skips over many layers."""

from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.analysis.streams import find_stream_link
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.residual.residual_adds import ResidualAdd, is_sublayer_output


def mark_nested_adds(analysis: ModelAnalysis, adds: dict[int, ResidualAdd]) -> None:
    """Joins inside the branch of another: small ones are inner, chains mean a long skip."""
    by_node = {r.add.node: r for r in analysis.add_analyses}
    for reading in analysis.add_analyses:
        join = reading.add
        inside = [by_node[i] for i in join.path if i in by_node and i not in (join.node, join.fork)]
        inside = [r for r in inside if not r.is_attention_score]
        nodes = {r.add.node for r in inside}
        chained = [r for r in inside if r.link.previous in nodes and r.add.parallel_to < 0]
        beside = bool(chained) and analysis.graph.has_path_avoiding(
            join.fork, join.branch, blocked=nodes
        )
        if (chained and not beside) or _is_long_skip(analysis, join, by_node=by_node):
            reading.skipped_adds = len(inside)
            reading.kind = "other"
            reading.inner_norms = []
            if not is_sublayer_output(analysis.graph, join.branch):
                # The stream goes on along the branch; what comes from below is the skip.
                reading.link = find_stream_link(
                    analysis.graph, adds, norms=analysis.norms, add=join, start=join.branch
                )
        else:
            for inner in inside:
                own = inner.add.fork != join.fork or inner.add.parallel_to >= 0
                if own and not (
                    beside and _continues_outside(analysis.graph, by_node, inner=inner, add=join)
                ):
                    inner.outer_add = join.node


def _continues_outside(
    graph: Graph, by_node: dict[int, AddAnalysis], *, inner: AddAnalysis, add: ResidualAdd
) -> bool:
    """Whether a stream that a branch reads has sums of its own outside that branch."""
    seen, waiting = {add.node}, [inner.add.node]
    while waiting:
        for kid in graph[waiting.pop()].users:
            if kid in seen:
                continue
            if kid in by_node and kid not in add.path:
                return True
            seen.add(kid)
            waiting.append(kid)
    return False


def _is_long_skip(
    analysis: ModelAnalysis, add: ResidualAdd, *, by_node: dict[int, AddAnalysis]
) -> bool:
    """Whether the branch itself is a stream that goes back to the fork by sums and norms alone."""
    graph = analysis.graph
    index = graph.trace_back(add.branch)[-1][0]
    if index not in by_node or index == add.parallel_to:
        return False
    for _ in range(200):
        if index == add.fork:
            return True
        if index in by_node:
            index = by_node[index].add.fork
        elif index in analysis.norms:
            index = analysis.norms[index].source
        elif (step := graph.parent_through_scale(index)) is not None:
            index = step[0]
        elif graph[index].op in ("add", "sub") and len(graph[index].inputs) == 1:
            index = graph[index].inputs[0]
        else:
            return False
    return False


def mark_duals(graph: Graph, readings: list[AddAnalysis]) -> None:
    """A branch that is added to two streams: the second is a dual of the first."""
    first: dict[int, AddAnalysis] = {}
    for reading in readings:
        origin = graph.trace_back(reading.add.branch)[-1][0]
        if origin in first:
            reading.is_dual, reading.kind = True, first[origin].kind
            if reading.add.parallel_to >= 0:
                reading.link.previous, reading.skipped_adds = reading.add.parallel_to, 0
                reading.inner_norms, reading.is_parallel = [], False
        first.setdefault(origin, reading)
