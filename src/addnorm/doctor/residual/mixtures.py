"""Mixtures of parallel streams: hyper-connections, along whatever axis the streams lie.

H <- A_r H + B f(N(A_m H)): the branch reads one weighted sum of the streams, and is written to each
of them by a weight of its own. Products, loops and sums over an axis are spellings of the same.
"""

from collections.abc import Container
from dataclasses import dataclass

from addnorm.doctor.graph.contractions import find_operand_axes, tensor_operands
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import CONVOLUTION, PRODUCT, SLICES

MAX_STREAMS = 16
"""Streams that a hyper-connection has at most."""
MAX_MIXTURE_NODES = 120
"""Nodes of one mixture that are looked at."""


@dataclass(frozen=True, slots=True)
class StreamMixture:
    """A sum of mixed streams and a branch that reads a mixture of the same."""

    fork: int
    width: int
    """Features of a token."""
    mixing_nodes: set[int]
    """Nodes that only mix streams: on the shortcut, and at both ends of the branch."""


def find_mixture(
    graph: Graph, adds: Container[int], *, shortcut: int, branch: int
) -> StreamMixture | None:
    """The mixture that `shortcut + branch` makes, if it makes one."""
    made, spread = _trace_write(graph, branch)
    width = _feature_width(graph, made)
    streams = find_streams(graph, adds, start=shortcut, width=width)
    several = graph[branch].size > graph[made].size
    if not several and not any(
        _is_weighted_sum(graph, adds, index=i, width=width) for i in streams
    ):
        return None
    fork = max(streams & graph.ancestors(made, min(streams)), default=-1)
    if fork < 0 or fork == made:
        return None
    light = _find_read_nodes(graph, adds, fork=fork, output=made, width=width)
    keeps = any(_is_weighted_sum(graph, adds, index=i, width=width) for i in streams if i > fork)
    keeps |= (
        find_mixed_streams(graph, fork, width=width) is not None
    )  # one product for both, cut in two
    if light is None or not (keeps or several):
        return None
    return StreamMixture(fork, width, {i for i in streams if i > fork} | light | spread)


def find_read_mixture(
    graph: Graph, adds: Container[int], *, fork: int, branch: int
) -> StreamMixture | None:
    """The mixture of streams that a branch reads, the fork among them."""
    made, spread = _trace_write(graph, branch)
    width = _feature_width(graph, made)
    light = (
        None if fork >= made else _find_read_nodes(graph, adds, fork=fork, output=made, width=width)
    )
    return None if light is None else StreamMixture(fork, width, light | spread)


def find_mixed_streams(graph: Graph, index: int, *, width: int = 0) -> int | None:
    """The streams in a product that sums over them and leaves their features alone.

    width: how many features a token has; without it a plain matrix is never taken for a mixture.
    """
    node = graph[index]
    if node.op not in PRODUCT and not (node.op == "linear" and width):
        return None
    for place, operand in enumerate(tensor_operands(node)):
        if operand.kind != "node" or not graph[operand.node].active:
            continue
        found = find_operand_axes(graph, index, position=place)
        if found is None or len(found.summed) != 1:
            continue
        shape = graph[operand.node].shape
        count = shape[found.summed[0]]
        kept = [shape[axis] for axis in found.free]
        new = node.size * count // max(graph[operand.node].size, 1)
        if not (2 <= count <= MAX_STREAMS and new <= MAX_STREAMS + 1):
            continue
        if (width in kept and count < width) if width else max(kept, default=0) > count:
            return operand.node
    return None


def _trace_write(graph: Graph, index: int) -> tuple[int, set[int]]:
    """Back from a branch over the weights by which it is written, to what was written."""
    passed: set[int] = set()
    while True:
        node = graph[index]
        step = graph.parent_through_scale(index)
        if step is not None:
            earlier = step[0]
        elif node.op == "mul" and len(node.inputs) == 2:
            small, earlier = sorted(node.inputs, key=lambda i: graph[i].size)
            if graph[small].size * 2 > graph[earlier].size:
                return index, passed
        elif node.op in PRODUCT and (outer := _outer_product_input(graph, index)) is not None:
            earlier = outer
        elif node.op in ("stack", "cat") and len(_find_origins(graph, index)) == 1:
            earlier = node.inputs[0]
        else:
            return index, passed
        passed.add(index)
        index = earlier


def _find_origins(graph: Graph, index: int) -> set[int]:
    return {graph.trace_back(i)[-1][0] for i in graph[index].inputs}


def _outer_product_input(graph: Graph, index: int) -> int | None:
    """The larger side of a product that sums over nothing."""
    node = graph[index]
    live = [(p, o.node) for p, o in enumerate(tensor_operands(node)) if o.node in node.inputs]
    place, large = max(live, key=lambda pair: graph[pair[1]].size, default=(0, -1))
    found = find_operand_axes(graph, index, position=place)
    if found is None or large < 0:
        return None
    shape = graph[large].shape
    return large if all(shape[axis] == 1 for axis in found.summed) else None


def _feature_width(graph: Graph, output: int) -> int:
    """Features of what a sub-layer made: where its last operation put them."""
    ways = [index for index, _ in graph.trace_back(output)]
    fewest = min(len(graph[i].shape) for i in ways)
    node = next(graph[i] for i in reversed(ways) if len(graph[i].shape) == fewest)
    if not node.shape:
        return 0
    return node.shape[1] if node.op in CONVOLUTION and len(node.shape) > 1 else node.shape[-1]


def find_streams(graph: Graph, adds: Container[int], *, start: int, width: int = 0) -> set[int]:
    """Everything that a node is a mixture of, up to the sums before it."""
    seen, waiting = {start}, [start]
    while waiting and len(seen) < MAX_MIXTURE_NODES:
        index = waiting.pop()
        for earlier in [] if index in adds else _summed_streams(graph, index, width=width):
            if earlier not in seen:
                seen.add(earlier)
                waiting.append(earlier)
    return seen


def _summed_streams(graph: Graph, index: int, *, width: int) -> tuple[int, ...]:
    """The streams of which a node is a weighted sum; none if it is something else."""
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
    """Everything that is a mixture of a stream and others, in the order of time."""
    found: set[int] = set()
    waiting = [start]
    while waiting and len(found) < MAX_MIXTURE_NODES:
        index = waiting.pop()
        for kid in graph[index].users:
            if kid not in found and index in _summed_streams(graph, kid, width=width):
                found.add(kid)
                waiting.append(kid)
    return found


def _is_sum_over_streams(graph: Graph, index: int, *, width: int) -> bool:
    """Whether a sum runs over an axis that may hold streams, and that alone."""
    node = graph[index]
    source = graph[node.inputs[0]] if node.inputs else node
    count = source.size // max(node.size, 1)
    return 2 <= count <= MAX_STREAMS and width in node.shape and width in source.shape


def _is_weighted_sum(graph: Graph, adds: Container[int], *, index: int, width: int) -> bool:
    """Whether a node adds streams up, each with its weight."""
    node = graph[index]
    if node.op in ("sum", "mean"):
        return _is_sum_over_streams(graph, index, width=width)
    if node.op in ("add", "sub"):
        return len(node.inputs) == 2 and index not in adds
    return find_mixed_streams(graph, index, width=width) is not None


def _find_read_nodes(
    graph: Graph, adds: Container[int], *, fork: int, output: int, width: int
) -> set[int] | None:
    """What lies between a fork and the sub-layer, if that is a mixture of streams."""
    path = graph.nodes_between(fork, output)
    light = {fork}
    for index in sorted(path - {fork}):
        sides = _summed_streams(graph, index, width=width)
        if index not in adds and any(i in light for i in sides):
            light.add(index)
    reads = any(_is_weighted_sum(graph, adds, index=i, width=width) for i in light - {fork})
    reads |= find_mixed_streams(graph, fork, width=width) is not None
    return light - {fork} if reads and graph.has_mixing(path - light) else None
