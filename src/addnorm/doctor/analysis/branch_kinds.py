"""What a branch is: self-attention, cross-attention, feed-forward, convolution, mixer, other.

One question tells: does a token of what the branch makes depend on other tokens, and how? Through
a product of two activations it is an attention; through weights, sums or steps a convolution or a
mixer; and if not at all, a feed-forward.
"""

from dataclasses import dataclass

from addnorm.doctor.analysis.axis_mixing import Step, follow
from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.graph.axis_layout import Layout, origins
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Shape
from addnorm.doctor.graph.ops import CONVOLUTION, PRODUCT, SLICES
from addnorm.doctor.residual.residual_adds import Join

FEW = 3
"""Tokens from which on a recurrence can be told."""
MATRICES = PRODUCT | CONVOLUTION | {"linear", "grouped_mm", "_grouped_mm"}


def kind_of(graph: Graph, join: Join, *, steps: list[Step], start: int = -1) -> str:
    """The kind of a branch, from how its tokens are mixed; or of the part behind `start`."""
    path = _path(graph, join, start=start)
    seen, ways = looking(steps), {step.how for step in steps}
    if seen and "running" not in ways:  # a scan may be laid out as products, chunk by chunk
        foreign = any(_foreign(graph, join, source=source) for i in seen for source in graph[i].ins)
        return "cross-attention" if foreign else "self-attention"
    if ways & {"running", "fourier"} or _scans(graph, path):
        return "mixer"
    if "kernel" in ways:
        return "convolution"
    if ways:
        return "mixer"
    return "feed-forward" if any(graph[i].op in MATRICES for i in path) else "other"


def _path(graph: Graph, join: Join, *, start: int) -> set[int]:
    if start >= 0:
        return graph.between(start, join.branch) - {start}
    return join.path - join.light - {join.fork}


@dataclass(frozen=True, slots=True)
class Walk:
    """A branch followed from where it begins."""

    join: Join
    shape: Shape
    layouts: dict[int, Layout]
    steps: list[Step]
    """Those of the branch itself."""
    streams: frozenset[int]
    """Axes along which parallel streams are mixed."""
    norms: list[Norm]

    @property
    def along(self) -> frozenset[int]:
        """Axes along which matrices work."""
        return frozenset[int]().union(*(s.origins for s in self.steps if s.how == "weights"))


def walked(graph: Graph, join: Join, *, norms: dict[int, Norm], start: int = -1) -> Walk:
    """Follow a branch, or its part behind `start`."""
    path = _path(graph, join, start=start)
    start = start if start >= 0 else join.fork
    layouts, steps = follow(graph, path | join.light, starts=[start])
    own = [norms[i] for i in sorted(path) if i in norms]
    statistics = [graph.between(n.source, n.node) - {n.source} for n in own if n.by_hand]
    inside = path.difference(*statistics)  # a norm looks along its axes, too
    mixing = [step.origins for step in steps if step.node in join.light]
    return Walk(
        join, graph[start].shape, layouts, [step for step in steps if step.node in inside],
        frozenset[int]().union(*mixing), own,
    )  # fmt: skip


def token_steps(walk: Walk, *, along: frozenset[int]) -> list[Step]:
    """The operations of a branch that let tokens see one another: those along any axis but that of
    the features. along: axes along which matrices of any branch work."""
    if walk.join.width in walk.shape:
        features = -1 - walk.shape[::-1].index(walk.join.width)
    else:
        features = _features(walk, along=along)
    apart = walk.streams | {features}
    return [step for step in walk.steps if step.how != "channels" and step.origins - apart]


def looking(steps: list[Step]) -> list[int]:
    """Where tokens look at each other."""
    return sorted({step.node for step in steps if step.how == "product"})


def _features(walk: Walk, *, along: frozenset[int]) -> int:
    """The axis of the stream that holds features: the one that matrices and norms agree about, or
    that kernels take for it, unless a norm names another along which matrices work; else the
    last."""
    said = next((s for s in walk.steps if s.how in ("channels", "weights")), None)
    if said is None or len(said.origins) != 1:
        return -1
    normed = [held for n in walk.norms[:1] if (held := _normalized(walk.layouts, n)) is not None]
    agree = bool(normed) and said.origins == normed[0]
    if said.how == "channels":
        agree |= not normed or not normed[0] & along
    return min(said.origins) if agree else -1


def _normalized(layouts: dict[int, Layout], norm: Norm) -> frozenset[int] | None:
    """The axes of the stream that a norm takes for features."""
    layout = layouts.get(norm.source)
    if layout is None or len(layout) < 2:
        return None
    if norm.kind in ("group", "instance"):
        return origins(layout[1:2])
    if norm.axes is None:
        return None
    alone = [axis for i, axis in enumerate(layout) if i - len(layout) not in norm.axes]
    return origins(alone if norm.kind == "batch" else [layout[i] for i in norm.axes])


def looks(graph: Graph, nodes: set[int]) -> list[int]:
    """Where tokens look at each other among some nodes, whatever they begin with."""
    starts = [i for i in nodes if graph[i].active and not nodes.intersection(graph[i].ins)]
    steps = follow(graph, nodes, starts=starts)[1]
    return looking([step for step in steps if step.origins - {-1}])


def _foreign(graph: Graph, join: Join, *, source: int) -> bool:
    """Whether an attention reads something that does not come from its own stream."""
    if source in join.path:
        return False
    if graph.reaches(join.fork, source):
        return False
    return graph[source].mixed >= 0 or graph[source].given


def _scans(graph: Graph, path: set[int]) -> bool:
    """Whether tokens are made one after the other, each of those before it."""
    written: list[int] = []
    for index in sorted(path):
        node = graph[index]
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
