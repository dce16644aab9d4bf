"""Roles of weights: query, key, value, out, ffn_in, ffn_out, from their position in the graph.

weight whose product is the first operand of the attention product     query
weight of an attention branch after that product                       out
first matrix of a feed-forward branch                                  ffn_in
one matrix for several of query, key and value                         qkv

The search starts at the product of attention weights and values and walks back: from the weights to
the product of queries and keys, from each operand to the nearest matrix. Names are not used:

    >>> import torch
    >>> from addnorm.doctor.model_trace import trace_model
    >>> class Attention(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a, self.b, self.c, self.d = (torch.nn.Linear(4, 4) for _ in range(4))
    ...
    ...     def forward(self, x):
    ...         weights = (self.b(x) @ self.a(x).mT).softmax(-1)
    ...         return x + self.d(weights @ self.c(x))
    >>> with trace_model(Attention(), torch.randn(2, 3, 4)) as trace:
    ...     (block,) = trace.analysis.blocks()
    ...     roles = find_weight_roles(trace.analysis, block)
    >>> sorted(roles.items())
    [('a.weight', 'key'), ('b.weight', 'query'), ('c.weight', 'value'), ('d.weight', 'out')]
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from addnorm.doctor.analysis.branch_kinds import attention_steps
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import ATTENTION, PRODUCT, REDUCTIONS, is_mixing

FUSED_QKV = "qkv"
"""Role of a matrix that computes two or three of query, key and value."""


def find_weight_roles(analysis: ModelAnalysis, block: AddAnalysis) -> dict[str, str]:
    """Return the role of every matrix of a branch, by the name of the weight."""
    graph, path = analysis.graph, block.add.path - {block.add.fork}
    roles: dict[str, str] = {}
    products = attention_steps(block.steps)
    for index in products:
        for role, names in _find_attention_roles(graph, path, index=index):
            for name in names:
                roles[name] = role if roles.get(name, role) == role else FUSED_QKV
    if products:
        later = (i for i in sorted(path) if i > products[0])
        return {n: "out" for i in later for n in _matrix_names(graph, i) if n not in roles} | roles
    prefix = "ffn" if block.kind == "feed-forward" else "branch"
    for index in sorted(path):
        for name in _matrix_names(graph, index):
            suffix = "in" if _is_first_matrix(graph, path, index=index) else "out"
            roles.setdefault(name, f"{prefix}_{suffix}")
    return roles


def _find_attention_roles(
    graph: Graph, path: AbstractSet[int], *, index: int
) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield roles and weights of the queries, keys and values of an attention product."""
    node = graph[index]
    if node.op == "multi_head_attention_forward":
        matrices = list(_matrix_names(graph, index))
        if len(matrices) == 4:
            yield from zip(("query", "key", "value", "out"), ([n] for n in matrices), strict=True)
        else:
            yield FUSED_QKV, matrices[:1]
            yield "out", matrices[1:]
        return
    if node.op in REDUCTIONS:  # (weights * values).sum(...)
        node = graph[graph.trace_back(node.inputs[0])[-1][0]]
    streams = _active_operands(graph, node.index)
    names: tuple[str, ...] = ("query", "key", "value")
    if node.op not in ATTENTION:
        products = [_find_query_key_product(graph, path, index=i) for i in streams]
        pair = next((_active_operands(graph, p)[:2] for p in products if p is not None), None)
        if pair is not None:
            values = [i for i, p in zip(streams, products, strict=True) if p is None]
            streams = [*pair, *values]
        else:  # linear attention: keys and values are multiplied first
            queries = _find_queries(graph, path, index=index)
            streams = [*queries, *streams]
            names = names[1 - len(queries) :]
    for role, stream in zip(names, streams, strict=False):
        yield role, list(_nearest_matrices(graph, path, index=stream))


def _active_operands(graph: Graph, index: int) -> list[int]:
    operands = graph[index].operands
    return [o.node for o in operands if o.kind == "node" and graph[o.node].active]


def _find_queries(graph: Graph, path: AbstractSet[int], *, index: int) -> list[int]:
    """Return the operand that a product of keys and values is multiplied by."""
    reached = graph.forward_reach(index) | {index}
    products = (i for i in sorted(reached & path) if i != index and graph[i].op in PRODUCT)
    return [i for p in products for i in _active_operands(graph, p) if i not in reached][:1]


def _find_query_key_product(graph: Graph, path: AbstractSet[int], *, index: int) -> int | None:
    """Return the product of queries and keys that attention weights come from.

    It is the nearest product of two activations; the walk back stops at weights.
    """
    visited, waiting = {index}, [index]
    while waiting:
        step = waiting.pop(0)
        if graph[step].op in PRODUCT and len(_active_operands(graph, step)) > 1:
            return step
        if step in path and not any(_matrix_names(graph, step)):
            new = [i for i in graph[step].inputs if i not in visited]
            visited.update(new)
            waiting += new
    return None


def _nearest_matrices(graph: Graph, path: AbstractSet[int], *, index: int) -> Iterator[str]:
    """Yield the nearest matrices that a node depends on."""
    visited, waiting = {index}, [index]
    while waiting:
        step = waiting.pop()
        names = list(_matrix_names(graph, step))
        yield from names
        if not names:
            new = [
                i
                for i in graph[step].inputs
                if i not in visited and (i in path or step not in path)
            ]
            visited.update(new)
            waiting += new


def _is_first_matrix(graph: Graph, path: AbstractSet[int], *, index: int) -> bool:
    """Return whether no other matrix precedes this one on the branch."""
    before = graph.ancestors(index, min(path)) & path
    return not any(True for i in before if i != index for _ in _matrix_names(graph, i))


def _matrix_names(graph: Graph, index: int) -> Iterator[str]:
    if is_mixing(graph[index].op):
        yield from _weight_names(graph, index)


def _weight_names(graph: Graph, index: int) -> Iterator[str]:
    for operand in graph[index].operands:
        if operand.kind == "weight" and operand.name and len(operand.shape) > 1:
            yield operand.name
        elif operand.kind == "node" and graph[operand.node].learned:
            yield from _weight_names(graph, operand.node)
