"""Mixtures of parallel streams: hyper-connections, whatever axis the streams lie on.

A hyper-connection keeps n streams H. The branch reads one weighted sum of them and is written to
each of them with a weight of its own:

    H = A_r @ H + b * f(norm(a_m @ H))

Products, loops over streams and sums over an axis are equivalent forms. Example with einsum, H of
shape (batch, n, tokens, dim):

    model code                                    nodes of the graph
    h = einsum("n,bntd->btd", a_m, H)             2 einsum(H = 1)     reads the mixture
    f = linear(norm(h))                           3 layer_norm, 4 linear
    H = einsum("nm,bntd->bmtd", A_r, H)           5 einsum(1)         mixes the shortcut
        + einsum("n,btd->bntd", b, f)             6 einsum(4)         writes the branch

    find_mixture(graph, adds, shortcut=5, branch=6)
    StreamMixture(fork=1, width=dim, mixing_nodes={2, 5, 6})

Three questions are answered by shapes and by the axes that each product sums over:
which node does the write start from (`_trace_write`: 4), which nodes is the shortcut a weighted sum
of (`find_streams`: 5 and 1), and is the path from their common node to the sub-layer such a sum
as well (`_find_read_nodes`: 2).
"""

from collections.abc import Container
from dataclasses import dataclass

from addnorm.doctor.graph.contractions import find_operand_axes, tensor_operands
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import CONVOLUTION, PRODUCT, SLICES

MAX_STREAMS = 16
"""Maximum number of streams of a hyper-connection."""
MAX_MIXTURE_NODES = 120
"""Maximum number of nodes of one mixture."""


@dataclass(frozen=True, slots=True)
class StreamMixture:
    """A sum of mixed streams and a branch that reads a mixture of the same streams."""

    fork: int
    width: int = 0
    """Number of features of a token; 0 if not known."""
    mixing_nodes: frozenset[int] = frozenset()
    """Nodes that only mix streams: on the shortcut, and at both ends of the branch."""


def find_mixture(
    graph: Graph, adds: Container[int], *, shortcut: int, branch: int
) -> StreamMixture | None:
    """Match `shortcut + branch` against a hyper-connection."""
    output, write_nodes = _trace_write(graph, branch)
    width = _feature_width(graph, output)
    streams = find_streams(graph, adds, start=shortcut, width=width)
    writes_several = graph[branch].size > graph[output].size
    if not writes_several and not any(
        _is_weighted_sum(graph, adds, index=i, width=width) for i in streams
    ):
        return None
    fork = max(streams & graph.ancestors(output, min(streams)), default=None)
    if fork is None or fork == output:
        return None
    read_nodes = _find_read_nodes(graph, adds, fork=fork, output=output, width=width)
    mixes = any(_is_weighted_sum(graph, adds, index=i, width=width) for i in streams if i > fork)
    # One product may compute both the mixed streams and what the branch reads, sliced afterwards.
    mixes |= find_mixed_streams(graph, fork, width=width) is not None
    if read_nodes is None or not (mixes or writes_several):
        return None
    shortcut_nodes = {i for i in streams if i > fork}
    return StreamMixture(fork, width, frozenset(shortcut_nodes | read_nodes | write_nodes))


def find_read_mixture(
    graph: Graph, adds: Container[int], *, fork: int, branch: int
) -> StreamMixture | None:
    """Return the mixture that a branch reads, if the fork is one of its streams."""
    output, write_nodes = _trace_write(graph, branch)
    if fork >= output:
        return None
    width = _feature_width(graph, output)
    read_nodes = _find_read_nodes(graph, adds, fork=fork, output=output, width=width)
    if read_nodes is None:
        return None
    return StreamMixture(fork, width, frozenset(read_nodes | write_nodes))


def find_mixed_streams(graph: Graph, index: int, *, width: int = 0) -> int | None:
    """Return the streams in a product that sums over streams and not over features.

    Args:
        graph: recorded graph
        index: node of the product
        width: number of features of a token; 0 if not known, then a plain matrix never counts
    """
    node = graph[index]
    if node.op not in PRODUCT and not (node.op == "linear" and width):
        return None
    for position, operand in enumerate(tensor_operands(node)):
        if operand.kind != "node" or not graph[operand.node].active:
            continue
        axes = find_operand_axes(graph, index, position=position)
        if axes is None or len(axes.summed) != 1:
            continue
        shape = graph[operand.node].shape
        streams_in = shape[axes.summed[0]]
        free_sizes = [shape[axis] for axis in axes.free]
        streams_out = node.size * streams_in // max(graph[operand.node].size, 1)
        if not (2 <= streams_in <= MAX_STREAMS and streams_out <= MAX_STREAMS + 1):
            continue
        if width:
            keeps_features = width in free_sizes and streams_in < width
        else:
            keeps_features = max(free_sizes, default=0) > streams_in
        if keeps_features:
            return operand.node
    return None


def _trace_write(graph: Graph, index: int) -> tuple[int, set[int]]:
    """Walk back from a branch over the write weights; return the sub-layer output and the nodes
    crossed."""
    crossed: set[int] = set()
    while True:
        node = graph[index]
        step = graph.parent_through_scale(index)
        if step is not None:
            earlier = step[0]
        elif node.op == "mul" and len(node.inputs) == 2:
            small, earlier = sorted(node.inputs, key=lambda i: graph[i].size)
            if graph[small].size * 2 > graph[earlier].size:
                return index, crossed
        elif node.op in PRODUCT and (outer := _outer_product_input(graph, index)) is not None:
            earlier = outer
        elif node.op in ("stack", "cat") and len(_find_origins(graph, index)) == 1:
            earlier = node.inputs[0]
        else:
            return index, crossed
        crossed.add(index)
        index = earlier


def _find_origins(graph: Graph, index: int) -> set[int]:
    return {graph.trace_back(i)[-1][0] for i in graph[index].inputs}


def _outer_product_input(graph: Graph, index: int) -> int | None:
    """Return the larger operand of a product that sums over nothing."""
    node = graph[index]
    active = [(p, o.node) for p, o in enumerate(tensor_operands(node)) if o.node in node.inputs]
    if not active:
        return None
    position, large = max(active, key=lambda pair: graph[pair[1]].size)
    axes = find_operand_axes(graph, index, position=position)
    if axes is None:
        return None
    shape = graph[large].shape
    return large if all(shape[axis] == 1 for axis in axes.summed) else None


def _feature_width(graph: Graph, output: int) -> int:
    """Return the number of features of a sub-layer output, from its last operation."""
    chain = [index for index, _ in graph.trace_back(output)]
    rank = min(len(graph[i].shape) for i in chain)
    node = next(graph[i] for i in reversed(chain) if len(graph[i].shape) == rank)
    if not node.shape:
        return 0
    return node.shape[1] if node.op in CONVOLUTION and len(node.shape) > 1 else node.shape[-1]


def find_streams(graph: Graph, adds: Container[int], *, start: int, width: int = 0) -> set[int]:
    """Return the nodes that `start` is a weighted sum of, up to the residual adds before it."""
    visited, waiting = {start}, [start]
    while waiting and len(visited) < MAX_MIXTURE_NODES:
        index = waiting.pop()
        for earlier in [] if index in adds else _summed_streams(graph, index, width=width):
            if earlier not in visited:
                visited.add(earlier)
                waiting.append(earlier)
    return visited


def _summed_streams(graph: Graph, index: int, *, width: int) -> tuple[int, ...]:
    """Return the streams that a node is a weighted sum of; empty if it is something else."""
    node = graph[index]
    step = graph.parent_through_scale(index)
    if step is not None:
        return (step[0],)
    if node.op in ("add", "sub", "stack", "cat"):
        return node.inputs
    if node.op in SLICES and len(node.inputs) == 1:
        return node.inputs
    if node.op in ("sum", "mean") and _is_sum_over_streams(graph, index, width=width):
        return node.inputs
    if node.op == "mul" and len(node.inputs) == 2:
        small, large = sorted(node.inputs, key=lambda i: graph[i].size)
        return (large,) if graph[small].size * 2 <= graph[large].size else ()
    streams = find_mixed_streams(graph, index, width=width)
    return () if streams is None else (streams,)


def find_later_mixtures(graph: Graph, start: int, *, width: int) -> set[int]:
    """Return the later nodes that are weighted sums of a stream and others."""
    mixtures: set[int] = set()
    waiting = [start]
    while waiting and len(mixtures) < MAX_MIXTURE_NODES:
        index = waiting.pop()
        for user in graph[index].users:
            if user not in mixtures and index in _summed_streams(graph, user, width=width):
                mixtures.add(user)
                waiting.append(user)
    return mixtures


def _is_sum_over_streams(graph: Graph, index: int, *, width: int) -> bool:
    """Return whether a reduction runs over one axis that may hold streams."""
    node = graph[index]
    source = graph[node.inputs[0]] if node.inputs else node
    count = source.size // max(node.size, 1)
    return 2 <= count <= MAX_STREAMS and width in node.shape and width in source.shape


def _is_weighted_sum(graph: Graph, adds: Container[int], *, index: int, width: int) -> bool:
    """Return whether a node is a sum of several streams."""
    node = graph[index]
    if node.op in ("sum", "mean"):
        return _is_sum_over_streams(graph, index, width=width)
    if node.op in ("add", "sub"):
        return len(node.inputs) == 2 and index not in adds
    return find_mixed_streams(graph, index, width=width) is not None


def _find_read_nodes(
    graph: Graph, adds: Container[int], *, fork: int, output: int, width: int
) -> set[int] | None:
    """Return the nodes from the fork to the sub-layer's input, if they mix streams; else None."""
    path = graph.nodes_between(fork, output)
    mixing = {fork}
    for index in sorted(path - {fork}):
        streams = _summed_streams(graph, index, width=width)
        if index not in adds and any(i in mixing for i in streams):
            mixing.add(index)
    read_nodes = mixing - {fork}
    reads = any(_is_weighted_sum(graph, adds, index=i, width=width) for i in read_nodes)
    reads |= find_mixed_streams(graph, fork, width=width) is not None
    return read_nodes if reads and graph.has_mixing(path - mixing) else None
