"""What a branch is: self-attention, cross-attention, feed-forward, convolution, mixer, other."""

from addnorm.doctor.graph import Graph
from addnorm.doctor.joins import Join
from addnorm.doctor.norms import Norm
from addnorm.doctor.ops import ATTENTION, CONVOLUTION, LINEAR, RECURRENT, mixes

PRODUCTS = frozenset({"matmul", "bmm", "einsum", "baddbmm"})


def kind_of(graph: Graph, join: Join) -> str:
    """The kind of a branch, from what happens on its way."""
    path = join.path - {join.fork}
    ops = {graph[i].op for i in path}
    looks = [i for i in path if graph[i].op in ATTENTION or _weighs(graph, i)]
    if looks:
        foreign = any(_foreign(graph, join, source) for i in looks for source in graph[i].ins)
        return "cross-attention" if foreign else "self-attention"
    if ops & CONVOLUTION:
        first = next((graph[i].op for i in sorted(path) if mixes(graph[i].op)), "")
        if first not in LINEAR:
            return "convolution"
        if ops & {"exp", "cumsum"}:
            return "mixer"  # a scan behind its convolution
    if ops & RECURRENT - {"gru_cell"} or _mixes_tokens(graph, join):
        return "mixer"
    if ops & LINEAR:
        return "feed-forward"
    return "mixer" if any(map(mixes, ops)) else "other"


def _weighs(graph: Graph, index: int) -> bool:
    """A product one of whose sides is a softmax: weights and values."""
    node = graph[index]
    if node.op not in PRODUCTS or len(node.ins) < 2:
        return False
    return any(graph[i].op == "softmax" for source in node.ins for i, _ in graph.chain(source))


def _foreign(graph: Graph, join: Join, source: int) -> bool:
    """Whether an attention reads something that does not come from its own stream."""
    if source in join.path:
        return False
    behind = graph.ancestors(source)
    if join.fork in behind:
        return False
    return any(mixes(graph[i].op) or graph[i].op == "input" for i in behind)


def _mixes_tokens(graph: Graph, join: Join) -> bool:
    """Whether a matrix is applied across tokens: between two transpositions of the last axes."""
    shape = graph[join.branch].shape
    if len(shape) < 3:
        return False
    for i in join.path:
        node = graph[i]
        if node.op in ("fft", "fft2", "fftn", "fft_fft", "fft_fft2", "fft_fftn", "rfft", "rfft2"):
            return True
        if node.op in ("linear", "matmul") and len(node.ins) == 1:
            read = graph[node.ins[0]]
            if len(read.shape) >= 3 and read.shape[-1] == shape[-2] and read.shape[-2] == shape[-1]:
                return shape[-1] != shape[-2] or _turned(graph, read.index)
    return False


def _turned(graph: Graph, index: int) -> bool:
    node = graph[index]
    return node.op in ("transpose", "permute", "mT", "swapaxes", "t")


def parallel_inside(graph: Graph, norms: dict[int, Norm], join: Join) -> bool:
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
            looks = [
                any(graph[i].op in ATTENTION or graph[i].op == "softmax" for i in way)
                for way in ways
            ]
            return looks[0] != looks[1]
        step = graph.back(index)
        if step is None:
            return False
        index = step[0]
    return False
