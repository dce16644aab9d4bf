"""What each weight does, by its place in the graph: query key value out ffn_in ffn_out."""

from collections.abc import Iterable, Iterator

from addnorm.doctor.analysis.branch_kinds import attention_steps
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import ATTENTION, PRODUCT, REDUCTIONS, is_mixing

FUSED_QKV = "qkv"
"""One matrix for queries, keys and values, or two of them."""


def find_weight_roles(analysis: ModelAnalysis, reading: AddAnalysis) -> dict[str, str]:
    """The role of every matrix of a block's branch, by the weight's name."""
    graph, path = analysis.graph, reading.add.path - {reading.add.fork}
    found: dict[str, str] = {}
    seen = attention_steps(reading.steps)
    for index in seen:
        for role, names in _find_attention_roles(graph, path, index=index):
            for name in names:
                found[name] = role if found.get(name, role) == role else FUSED_QKV
    if seen:
        later = (i for i in sorted(path) if i > seen[0])
        return {n: "out" for i in later for n in _matrix_names(graph, i) if n not in found} | found
    branch = "ffn" if reading.kind == "feed-forward" else "branch"
    for index in sorted(path):
        for name in _matrix_names(graph, index):
            found.setdefault(
                name, f"{branch}_{'in' if _is_first_matrix(graph, path, index=index) else 'out'}"
            )
    return found


def _find_attention_roles(
    graph: Graph, path: set[int], *, index: int
) -> Iterator[tuple[str, Iterable[str]]]:
    """What made the queries, keys and values that meet at a node."""
    node = graph[index]
    if node.op == "multi_head_attention_forward":
        inside = list(_matrix_names(graph, index))
        if len(inside) == 4:
            yield from zip(("query", "key", "value", "out"), ([n] for n in inside), strict=True)
        else:
            yield FUSED_QKV, inside[:1]
            yield "out", inside[1:]
        return
    if node.op in REDUCTIONS:  # weights times values, summed afterwards
        node = graph[graph.trace_back(node.inputs[0])[-1][0]]
    streams = _active_operands(graph, node.index)
    names: tuple[str, ...] = ("query", "key", "value")
    if node.op not in ATTENTION:
        products = [_find_query_key_product(graph, path, index=i) for i in streams]
        pair = next((_active_operands(graph, p)[:2] for p in products if p is not None), None)
        if pair is not None:
            values = [i for i, p in zip(streams, products, strict=True) if p is None]
            streams = [*pair, *values]
        else:  # keys and values first, as where attention is linear
            asked = _find_queries(graph, path, index=index)
            streams = [*asked, *streams]
            names = names[1 - len(asked) :]
    for role, stream in zip(names, streams, strict=False):
        yield role, list(_nearest_matrices(graph, path, index=stream))


def _active_operands(graph: Graph, index: int) -> list[int]:
    operands = graph[index].operands
    return [o.node for o in operands if o.kind == "node" and graph[o.node].active]


def _find_queries(graph: Graph, path: set[int], *, index: int) -> list[int]:
    """What a product of keys and values is multiplied with."""
    reached = graph.forward_reach(index) | {index}
    products = (i for i in sorted(reached & path) if i != index and graph[i].op in PRODUCT)
    return [i for p in products for i in _active_operands(graph, p) if i not in reached][:1]


def _find_query_key_product(graph: Graph, path: set[int], *, index: int) -> int | None:
    """The product of queries and keys behind the weights of an attention: the nearest product of
    two activations with no matrix of its own before it."""
    seen, waiting = {index}, [index]
    while waiting:
        step = waiting.pop(0)
        if graph[step].op in PRODUCT and len(_active_operands(graph, step)) > 1:
            return step
        if step in path and not any(_matrix_names(graph, step)):
            new = [i for i in graph[step].inputs if i not in seen]
            seen.update(new)
            waiting += new
    return None


def _nearest_matrices(graph: Graph, path: set[int], *, index: int) -> Iterator[str]:
    """The nearest matrices behind a node."""
    seen, waiting = {index}, [index]
    while waiting:
        step = waiting.pop()
        names = list(_matrix_names(graph, step))
        yield from names
        if not names:
            new = [
                i for i in graph[step].inputs if i not in seen and (i in path or step not in path)
            ]
            seen.update(new)
            waiting += new


def _is_first_matrix(graph: Graph, path: set[int], *, index: int) -> bool:
    """Whether no other matrix stands between the fork and this one."""
    behind = graph.ancestors(index, min(path)) & path
    return not any(True for i in behind if i != index for _ in _matrix_names(graph, i))


def _matrix_names(graph: Graph, index: int) -> Iterator[str]:
    if is_mixing(graph[index].op):
        yield from _weight_names(graph, index)


def _weight_names(graph: Graph, index: int) -> Iterator[str]:
    for operand in graph[index].operands:
        if operand.kind == "weight" and operand.name and len(operand.shape) > 1:
            yield operand.name
        elif operand.kind == "node" and graph[operand.node].learned:
            yield from _weight_names(graph, operand.node)
