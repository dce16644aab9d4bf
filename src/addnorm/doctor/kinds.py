"""What a branch is: self-attention, cross-attention, feed-forward, convolution, mixer, other."""

from addnorm.doctor.graph import Graph
from addnorm.doctor.joins import Join
from addnorm.doctor.nodes import Shape
from addnorm.doctor.norms import Norm
from addnorm.doctor.ops import (
    ATTENTION,
    CONVOLUTION,
    FOURIER,
    LINEAR,
    PRODUCT,
    RECURRENT,
    SLICES,
    mixes,
)
from addnorm.doctor.products import axes, factors

HOPS = 4
"""Slices behind which a softmax is looked for."""
FEW = 3
"""Tokens from which on a recurrence can be told."""


def kind_of(graph: Graph, join: Join, *, start: int = -1) -> str:
    """The kind of a branch, from what happens on its way; or on the part behind `start`."""
    path = join.path - join.light - {join.fork}
    if start >= 0:
        path = graph.between(start, join.branch) - {start}
    ops = {graph[i].op for i in path}
    seen = looks(graph, path)
    if seen:
        foreign = any(_foreign(graph, join, source=source) for i in seen for source in graph[i].ins)
        return "cross-attention" if foreign else "self-attention"
    if ops & CONVOLUTION:
        first = next((graph[i].op for i in sorted(path) if mixes(graph[i].op)), "")
        if first not in LINEAR:
            return "convolution"
        if ops & {"exp", "cumsum"}:
            return "mixer"  # a scan behind its convolution
    if ops & RECURRENT - {"gru_cell"} or _mixes_tokens(graph, join, path=path):
        return "mixer"
    if _scans(graph, path):
        return "mixer"
    if ops & LINEAR:
        return "feed-forward"
    return "mixer" if any(map(mixes, ops)) else "other"


def _weighs(graph: Graph, index: int) -> bool:
    """A product one of whose sides is a softmax: weights and values."""
    node = graph[index]
    if node.op not in PRODUCT or len(node.ins) < 2:
        return False
    return any(softmaxed(graph, source) for source in node.ins)


def softmaxed(graph: Graph, index: int) -> bool:
    """Whether a node is a softmax, masked or not, or a part of one (a sink may be cut off)."""
    for _ in range(HOPS):
        index = graph.chain(index)[-1][0]
        node = graph[index]
        if node.op == "softmax" or _softmax_by_hand(graph, index):
            return True
        cut = node.op in SLICES and len(node.ins) == 1
        if not cut and not _shared_out(graph, index):
            return False
        index = node.ins[0]
    return False


def _shared_out(graph: Graph, index: int) -> bool:
    """x / sum(x): weights that are made to sum to 1 once more, as behind a mask."""
    node = graph[index]
    if node.op != "div" or len(node.ins) != 2:
        return False
    value, total = (o.node for o in node.operands[:2])
    while len(graph[total].ins) == 1 and graph[total].op != "sum":
        total = graph[total].ins[0]
    return graph[total].op == "sum" and graph[total].ins == (value,)


def _softmax_by_hand(graph: Graph, index: int) -> bool:
    """exp(x - logsumexp(x)), or exp(x) divided by its sum."""
    node = graph[index]
    if node.op == "exp" and node.ins:
        inner = graph[node.ins[0]]
        return any(graph[i].op == "logsumexp" for i in inner.ins)
    if node.op == "div" and len(node.ins) == 2:
        return any(graph[i].op == "exp" for i in node.ins) and any(
            graph[i].op == "sum" for i in node.ins
        )
    return False


def looks(graph: Graph, nodes: set[int]) -> list[int]:
    """Where tokens look at each other among these nodes."""
    return [i for i in nodes if graph[i].op in ATTENTION or _weighs(graph, i)]


def _foreign(graph: Graph, join: Join, *, source: int) -> bool:
    """Whether an attention reads something that does not come from its own stream."""
    if source in join.path:
        return False
    if graph.reaches(join.fork, source):
        return False
    return graph[source].mixed >= 0 or graph[source].given


def _mixes_tokens(graph: Graph, join: Join, *, path: set[int]) -> bool:
    """Whether something is applied across tokens: a Fourier transform, or a matrix that sums over
    another axis than that of the features."""
    shape = graph[join.branch].shape
    if len(shape) < 3:
        return False
    if join.width in shape:  # which axis holds the features is known
        place = shape.index(join.width)
        shape = (*shape[:place], *shape[place + 1 :], join.width)
    return any(graph[i].op in FOURIER or _across(graph, i, shape=shape) for i in path)


def _scans(graph: Graph, path: set[int]) -> bool:
    """Whether tokens are summed up along the way, or made one after the other, each of those before
    it."""
    written: list[int] = []
    for index in sorted(path):
        node = graph[index]
        if node.op == "cumsum" and node.detail.get("dim", -1) not in (-1, len(node.shape) - 1):
            return True
        if node.op == "setitem":
            written += [i for i in node.ins[-1:] if i in path]
        if node.op in ("stack", "cat") and _one_by_one(graph, path, parts=list(node.ins)):
            return True
    return _one_by_one(graph, path, parts=written)


def _one_by_one(graph: Graph, path: set[int], *, parts: list[int]) -> bool:
    """Whether one end of some parts reads one place of a tensor, and the other end many."""
    if len(parts) < FEW:
        return False
    counts = [_places(graph, path, index=part) for part in (parts[0], parts[-1])]
    return max(counts) >= FEW > min(counts)


def _places(graph: Graph, path: set[int], *, index: int) -> int:
    """Of how many slices of one tensor a node is made, inside a branch."""
    slices: dict[int, int] = {}
    seen, waiting = {index}, [index]
    while waiting:
        node = graph[waiting.pop()]
        if node.op in SLICES and len(node.ins) == 1:
            slices[node.ins[0]] = slices.get(node.ins[0], 0) + 1
        for i in node.ins:
            if i in path and i not in seen:
                seen.add(i)
                waiting.append(i)
    return max(slices.values(), default=0)


def _across(graph: Graph, index: int, *, shape: Shape) -> bool:
    """Whether a matrix sums over the tokens of a stream of this shape."""
    node = graph[index]
    if node.op not in PRODUCT | {"linear"} or len(node.ins) != 1:
        return False
    read = graph[node.ins[0]]
    axis = _contracted_axis(graph, index)
    if axis is None or len(read.shape) < 3:
        return False
    if axis == len(read.shape) - 1:  # the features, unless they were moved away before
        turned = read.shape[-1] == shape[-2] and read.shape[-2] == shape[-1]
        return turned and (shape[-1] != shape[-2] or _turned(graph, read.index))
    kept = node.shape[-1:] == read.shape[-1:] == shape[-1:]
    return kept and read.shape[axis] == shape[-2] and not _turned(graph, read.index)


def _contracted_axis(graph: Graph, index: int) -> int | None:
    """The axis of the stream that a product with something else sums over."""
    node = graph[index]
    place = next((p for p, o in enumerate(factors(node)) if o.node == node.ins[0]), 0)
    found = axes(graph, index, place=place)
    return found.summed[0] if found is not None and len(found.summed) == 1 else None


def _turned(graph: Graph, index: int) -> bool:
    node = graph[index]
    return node.op in ("transpose", "permute", "mT", "swapaxes", "t")


def parallel_inside(graph: Graph, norms: dict[int, Norm], *, join: Join) -> bool:
    """Whether the branch is a sum of an attention and something else that read the same fork."""
    index = join.branch
    for _ in range(10):
        node = graph[index]
        if node.op == "add" and len(node.ins) == 2:
            ways = [graph.between(join.fork, i) for i in node.ins]
            shared = (ways[0] & ways[1]) - {join.fork} - set(norms)
            apart = all(graph.mixing(way, but=join.fork) for way in ways)
            reached = all(
                i in way or join.fork in graph.ancestors(i, join.fork)
                for i, way in zip(node.ins, ways, strict=True)
            )
            if not apart or not reached or graph.mixing(shared):
                return False
            return bool(looks(graph, ways[0])) != bool(looks(graph, ways[1]))
        step = graph.back(index)
        if step is None:
            return False
        index = step[0]
    return False
