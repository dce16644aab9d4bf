"""Mixtures of parallel streams: hyper-connections, along whatever axis the streams lie.

H <- A_r H + B f(N(A_m H)): the branch reads one weighted sum of the streams, and is written to each
of them by a weight of its own. Products, loops and sums over an axis are spellings of the same.
"""

from collections.abc import Container
from dataclasses import dataclass

from addnorm.doctor.graph.contractions import axes, factors
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import CONVOLUTION, PRODUCT, SLICES

SMALL = 16
"""Streams that a hyper-connection has at most."""
MIXTURE_NODES = 120
"""Nodes of one mixture that are looked at."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """A sum of mixed streams and a branch that reads a mixture of the same."""

    fork: int
    width: int
    """Features of a token."""
    light: set[int]
    """Nodes that only mix streams: on the shortcut, and at both ends of the branch."""


def mixed(graph: Graph, joins: Container[int], *, shortcut: int, branch: int) -> Mixture | None:
    """The mixture that `shortcut + branch` makes, if it makes one."""
    made, spread = _written(graph, branch)
    width = _width(graph, made)
    streams = streams_of(graph, joins, start=shortcut, width=width)
    several = graph[branch].size > graph[made].size
    if not several and not any(_combines(graph, joins, index=i, width=width) for i in streams):
        return None
    fork = max(streams & graph.ancestors(made, min(streams)), default=-1)
    if fork < 0 or fork == made:
        return None
    light = _reads(graph, joins, fork=fork, made=made, width=width)
    keeps = any(_combines(graph, joins, index=i, width=width) for i in streams if i > fork)
    keeps |= mixture_of(graph, fork, width=width) is not None  # one product for both, cut in two
    if light is None or not (keeps or several):
        return None
    return Mixture(fork, width, {i for i in streams if i > fork} | light | spread)


def reads_mixture(graph: Graph, joins: Container[int], *, fork: int, branch: int) -> Mixture | None:
    """The mixture of streams that a branch reads, the fork among them."""
    made, spread = _written(graph, branch)
    width = _width(graph, made)
    light = None if fork >= made else _reads(graph, joins, fork=fork, made=made, width=width)
    return None if light is None else Mixture(fork, width, light | spread)


def mixture_of(graph: Graph, index: int, *, width: int = 0) -> int | None:
    """The streams in a product that sums over them and leaves their features alone.

    width: how many features a token has; without it a plain matrix is never taken for a mixture.
    """
    node = graph[index]
    if node.op not in PRODUCT and not (node.op == "linear" and width):
        return None
    for place, operand in enumerate(factors(node)):
        if operand.kind != "node" or not graph[operand.node].active:
            continue
        found = axes(graph, index, place=place)
        if found is None or len(found.summed) != 1:
            continue
        shape = graph[operand.node].shape
        count = shape[found.summed[0]]
        kept = [shape[axis] for axis in found.own]
        new = node.size * count // max(graph[operand.node].size, 1)
        if not (2 <= count <= SMALL and new <= SMALL + 1):
            continue
        if (width in kept and count < width) if width else max(kept, default=0) > count:
            return operand.node
    return None


def _written(graph: Graph, index: int) -> tuple[int, set[int]]:
    """Back from a branch over the weights by which it is written, to what was written."""
    passed: set[int] = set()
    while True:
        node = graph[index]
        step = graph.back(index)
        if step is not None:
            earlier = step[0]
        elif node.op == "mul" and len(node.ins) == 2:
            small, earlier = sorted(node.ins, key=lambda i: graph[i].size)
            if graph[small].size * 2 > graph[earlier].size:
                return index, passed
        elif node.op in PRODUCT and (outer := _outer(graph, index)) is not None:
            earlier = outer
        elif node.op in ("stack", "cat") and len(_origins(graph, index)) == 1:
            earlier = node.ins[0]
        else:
            return index, passed
        passed.add(index)
        index = earlier


def _origins(graph: Graph, index: int) -> set[int]:
    return {graph.chain(i)[-1][0] for i in graph[index].ins}


def _outer(graph: Graph, index: int) -> int | None:
    """The larger side of a product that sums over nothing."""
    node = graph[index]
    live = [(p, o.node) for p, o in enumerate(factors(node)) if o.node in node.ins]
    place, large = max(live, key=lambda pair: graph[pair[1]].size, default=(0, -1))
    found = axes(graph, index, place=place)
    if found is None or large < 0:
        return None
    shape = graph[large].shape
    return large if all(shape[axis] == 1 for axis in found.summed) else None


def _width(graph: Graph, made: int) -> int:
    """Features of what a sub-layer made: where its last operation put them."""
    ways = [index for index, _ in graph.chain(made)]
    fewest = min(len(graph[i].shape) for i in ways)
    node = next(graph[i] for i in reversed(ways) if len(graph[i].shape) == fewest)
    if not node.shape:
        return 0
    return node.shape[1] if node.op in CONVOLUTION and len(node.shape) > 1 else node.shape[-1]


def streams_of(graph: Graph, joins: Container[int], *, start: int, width: int = 0) -> set[int]:
    """Everything that a node is a mixture of, up to the sums before it."""
    seen, waiting = {start}, [start]
    while waiting and len(seen) < MIXTURE_NODES:
        index = waiting.pop()
        for earlier in [] if index in joins else _sides(graph, index, width=width):
            if earlier not in seen:
                seen.add(earlier)
                waiting.append(earlier)
    return seen


def _sides(graph: Graph, index: int, *, width: int) -> tuple[int, ...]:
    """The streams of which a node is a weighted sum; none if it is something else."""
    node = graph[index]
    step = graph.back(index)
    if step is not None:
        return (step[0],)
    if node.op in ("add", "sub", "stack", "cat"):
        return node.ins
    if node.op in SLICES and len(node.ins) == 1:
        return node.ins
    if node.op in ("sum", "mean") and _over_streams(graph, index, width=width):
        return node.ins
    if node.op == "mul" and len(node.ins) == 2:
        small, large = sorted(node.ins, key=lambda i: graph[i].size)
        return (large,) if graph[small].size * 2 <= graph[large].size else ()
    streams = mixture_of(graph, index, width=width)
    return () if streams is None else (streams,)


def mixed_onward(graph: Graph, start: int, *, width: int) -> set[int]:
    """Everything that is a mixture of a stream and others, in the order of time."""
    found: set[int] = set()
    waiting = [start]
    while waiting and len(found) < MIXTURE_NODES:
        index = waiting.pop()
        for kid in graph[index].kids:
            if kid not in found and index in _sides(graph, kid, width=width):
                found.add(kid)
                waiting.append(kid)
    return found


def _over_streams(graph: Graph, index: int, *, width: int) -> bool:
    """Whether a sum runs over an axis that may hold streams, and that alone."""
    node = graph[index]
    source = graph[node.ins[0]] if node.ins else node
    count = source.size // max(node.size, 1)
    return 2 <= count <= SMALL and width in node.shape and width in source.shape


def _combines(graph: Graph, joins: Container[int], *, index: int, width: int) -> bool:
    """Whether a node adds streams up, each with its weight."""
    node = graph[index]
    if node.op in ("sum", "mean"):
        return _over_streams(graph, index, width=width)
    if node.op in ("add", "sub"):
        return len(node.ins) == 2 and index not in joins
    return mixture_of(graph, index, width=width) is not None


def _reads(
    graph: Graph, joins: Container[int], *, fork: int, made: int, width: int
) -> set[int] | None:
    """What lies between a fork and the sub-layer, if that is a mixture of streams."""
    path = graph.between(fork, made)
    light = {fork}
    for index in sorted(path - {fork}):
        sides = _sides(graph, index, width=width)
        if index not in joins and any(i in light for i in sides):
            light.add(index)
    reads = any(_combines(graph, joins, index=i, width=width) for i in light - {fork})
    reads |= mixture_of(graph, fork, width=width) is not None
    return light - {fork} if reads and graph.mixing(path - light) else None
