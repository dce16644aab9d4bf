"""What a branch is: self-attention, cross-attention, feed-forward, convolution, mixer, other.

One question tells: does a token of what the branch makes depend on other tokens, and how? Through
a product of two activations it is an attention; through weights, sums or steps a convolution or a
mixer; and if not at all, a feed-forward.
"""

from dataclasses import dataclass

from addnorm.doctor.analysis.axis_mixing import AxisMixing, trace_axes
from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.graph.axis_layout import Layout, collect_origins
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Shape
from addnorm.doctor.graph.ops import CONVOLUTION, PRODUCT, SLICES
from addnorm.doctor.residual.residual_adds import ResidualAdd

MIN_RECURRENCE_TOKENS = 3
"""Tokens from which on a recurrence can be told."""
MATRIX_OPS = PRODUCT | CONVOLUTION | {"linear", "grouped_mm", "_grouped_mm"}


def classify_branch(
    graph: Graph, add: ResidualAdd, *, steps: list[AxisMixing], start: int = -1
) -> str:
    """The kind of a branch, from how its tokens are mixed; or of the part behind `start`."""
    path = _branch_nodes(graph, add, start=start)
    seen, ways = attention_steps(steps), {step.kind for step in steps}
    if seen and "running" not in ways:  # a scan may be laid out as products, chunk by chunk
        foreign = any(
            _is_foreign(graph, add, source=source) for i in seen for source in graph[i].inputs
        )
        return "cross-attention" if foreign else "self-attention"
    if ways & {"running", "fourier"} or _has_scan(graph, path):
        return "mixer"
    if "kernel" in ways:
        return "convolution"
    if ways:
        return "mixer"
    return "feed-forward" if any(graph[i].op in MATRIX_OPS for i in path) else "other"


def _branch_nodes(graph: Graph, add: ResidualAdd, *, start: int) -> set[int]:
    if start >= 0:
        return graph.nodes_between(start, add.branch) - {start}
    return add.path - add.mixing_nodes - {add.fork}


@dataclass(frozen=True, slots=True)
class BranchWalk:
    """A branch followed from where it begins."""

    join: ResidualAdd
    shape: Shape
    layouts: dict[int, Layout]
    steps: list[AxisMixing]
    """Those of the branch itself."""
    stream_axes: frozenset[int]
    """Axes along which parallel streams are mixed."""
    norms: list[Norm]

    @property
    def matrix_axes(self) -> frozenset[int]:
        """Axes along which matrices work."""
        return frozenset[int]().union(*(s.origins for s in self.steps if s.kind == "weights"))


def walk_branch(
    graph: Graph, add: ResidualAdd, *, norms: dict[int, Norm], start: int = -1
) -> BranchWalk:
    """Follow a branch, or its part behind `start`."""
    path = _branch_nodes(graph, add, start=start)
    start = start if start >= 0 else add.fork
    layouts, steps = trace_axes(graph, path | add.mixing_nodes, starts=[start])
    own = [norms[i] for i in sorted(path) if i in norms]
    statistics = [graph.nodes_between(n.source, n.node) - {n.source} for n in own if n.by_hand]
    inside = path.difference(*statistics)  # a norm looks along its axes, too
    mixing = [step.origins for step in steps if step.node in add.mixing_nodes]
    return BranchWalk(
        add, graph[start].shape, layouts, [step for step in steps if step.node in inside],
        frozenset[int]().union(*mixing), own,
    )  # fmt: skip


def find_token_mixing(walk: BranchWalk, *, matrix_axes: frozenset[int]) -> list[AxisMixing]:
    """The operations of a branch that let tokens see one another: those along any axis but that of
    the features. along: axes along which matrices of any branch work."""
    if walk.join.width in walk.shape:
        features = -1 - walk.shape[::-1].index(walk.join.width)
    else:
        features = _find_feature_axis(walk, matrix_axes=matrix_axes)
    apart = walk.stream_axes | {features}
    return [step for step in walk.steps if step.kind != "channels" and step.origins - apart]


def attention_steps(steps: list[AxisMixing]) -> list[int]:
    """Where tokens look at each other."""
    return sorted({step.node for step in steps if step.kind == "product"})


def _find_feature_axis(walk: BranchWalk, *, matrix_axes: frozenset[int]) -> int:
    """The axis of the stream that holds features: the one that matrices and norms agree about, or
    that kernels take for it, unless a norm names another along which matrices work; else the
    last."""
    said = next((s for s in walk.steps if s.kind in ("channels", "weights")), None)
    if said is None or len(said.origins) != 1:
        return -1
    normed = [
        held for n in walk.norms[:1] if (held := _normalized_axes(walk.layouts, n)) is not None
    ]
    agree = bool(normed) and said.origins == normed[0]
    if said.kind == "channels":
        agree |= not normed or not normed[0] & matrix_axes
    return min(said.origins) if agree else -1


def _normalized_axes(layouts: dict[int, Layout], norm: Norm) -> frozenset[int] | None:
    """The axes of the stream that a norm takes for features."""
    layout = layouts.get(norm.source)
    if layout is None or len(layout) < 2:
        return None
    if norm.kind in ("group", "instance"):
        return collect_origins(layout[1:2])
    if norm.axes is None:
        return None
    alone = [axis for i, axis in enumerate(layout) if i - len(layout) not in norm.axes]
    return collect_origins(alone if norm.kind == "batch" else [layout[i] for i in norm.axes])


def attention_nodes(graph: Graph, nodes: set[int]) -> list[int]:
    """Where tokens look at each other among some nodes, whatever they begin with."""
    starts = [i for i in nodes if graph[i].active and not nodes.intersection(graph[i].inputs)]
    steps = trace_axes(graph, nodes, starts=starts)[1]
    return attention_steps([step for step in steps if step.origins - {-1}])


def _is_foreign(graph: Graph, add: ResidualAdd, *, source: int) -> bool:
    """Whether an attention reads something that does not come from its own stream."""
    if source in add.path:
        return False
    if graph.reaches(add.fork, source):
        return False
    return graph[source].last_mixing >= 0 or graph[source].from_float_input


def _has_scan(graph: Graph, path: set[int]) -> bool:
    """Whether tokens are made one after the other, each of those before it."""
    written: list[int] = []
    for index in sorted(path):
        node = graph[index]
        if node.op == "setitem":
            written += [i for i in node.inputs[-1:] if i in path]
        if node.op in ("stack", "cat") and _is_sequential(graph, path, nodes=list(node.inputs)):
            return True
    return _is_sequential(graph, path, nodes=written)


def _is_sequential(graph: Graph, path: set[int], *, nodes: list[int]) -> bool:
    """Whether one end of some parts reads one place of a tensor, and the other end many."""
    if len(nodes) < MIN_RECURRENCE_TOKENS:
        return False
    counts = [_count_slices(graph, path, index=part) for part in (nodes[0], nodes[-1])]
    return max(counts) >= MIN_RECURRENCE_TOKENS > min(counts)


def _count_slices(graph: Graph, path: set[int], *, index: int) -> int:
    """Of how many slices of one tensor a node is made, inside a branch."""
    slices: dict[int, int] = {}
    seen, waiting = {index}, [index]
    while waiting:
        node = graph[waiting.pop()]
        if node.op in SLICES and len(node.inputs) == 1:
            slices[node.inputs[0]] = slices.get(node.inputs[0], 0) + 1
        for i in node.inputs:
            if i in path and i not in seen:
                seen.add(i)
                waiting.append(i)
    return max(slices.values(), default=0)


def has_parallel_branches(graph: Graph, norms: dict[int, Norm], *, add: ResidualAdd) -> bool:
    """Whether the branch is a sum of an attention and something else that read the same fork."""
    index = add.branch
    for _ in range(10):
        node = graph[index]
        if node.op == "add" and len(node.inputs) == 2:
            ways = [graph.nodes_between(add.fork, i) for i in node.inputs]
            shared = (ways[0] & ways[1]) - {add.fork} - set(norms)
            apart = all(graph.has_mixing(way, exclude=add.fork) for way in ways)
            reached = all(
                i in way or add.fork in graph.ancestors(i, add.fork)
                for i, way in zip(node.inputs, ways, strict=True)
            )
            if not apart or not reached or graph.has_mixing(shared):
                return False
            return bool(attention_nodes(graph, ways[0])) != bool(attention_nodes(graph, ways[1]))
        step = graph.parent_through_scale(index)
        if step is None:
            return False
        index = step[0]
    return False
