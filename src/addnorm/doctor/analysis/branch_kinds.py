"""Kind of a branch: self-attention, cross-attention, feed-forward, convolution, mixer or other.

One question decides: how does a token of the output depend on other tokens?

    product of two activations             attention (cross-attention if it reads another stream)
    kernel of a convolution                convolution
    weights, sums, scans or a Fourier      mixer
    transform along tokens
    not at all, but there is a matrix      feed-forward

Example: `x + out(softmax(q(x) @ k(x).mT) @ v(x))`, with x of shape (batch, tokens, features).

    walk_branch          axis layouts of every node, and every operation that mixes an axis:
                         linear: weights along -1; both matmuls: product along -1 and -2
    find_token_mixing    keeps those along an axis other than the features: the second matmul
    classify_branch      a product of two activations, both from this stream: self-attention

The axis of the features is not always the last one: `(batch, features, tokens)` is common around
convolutions. Matrices, kernels and norms of the branch vote on it (`_find_feature_axis`).
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from addnorm.doctor.analysis.axis_mixing import AxisMixing, trace_axes
from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.graph.axis_layout import Layout, collect_origins
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Shape
from addnorm.doctor.graph.ops import CONVOLUTION, PRODUCT, SLICES
from addnorm.doctor.residual.residual_adds import ResidualAdd

MIN_RECURRENCE_TOKENS = 3
"""Smallest number of time steps that shows a recurrence."""
MAX_PARALLEL_STEPS = 10
"""Maximum number of steps from the end of a branch back to the sum of two parallel ones."""
MATRIX_OPS = PRODUCT | CONVOLUTION | {"linear", "grouped_mm", "_grouped_mm"}


@dataclass(frozen=True, slots=True)
class BranchKind:
    """Kind of a branch, and the operations that mix its tokens."""

    name: str
    """self-attention, cross-attention, feed-forward, convolution, mixer or other."""
    steps: tuple[AxisMixing, ...]


def classify_branch(
    graph: Graph, add: ResidualAdd, *, steps: Sequence[AxisMixing], start: int | None = None
) -> str:
    """Return the kind of a branch.

    Args:
        graph: recorded graph.
        add: the residual add.
        steps: operations of the branch that mix tokens.
        start: node inside the branch; if given, only the part after it counts.
    """
    path = _branch_nodes(graph, add, start=start)
    products, kinds = attention_steps(steps), {step.kind for step in steps}
    if products and "running" not in kinds:  # a chunked scan is computed by products, too
        is_cross = any(
            _is_foreign(graph, add, source=source) for i in products for source in graph[i].inputs
        )
        return "cross-attention" if is_cross else "self-attention"
    if kinds & {"running", "fourier"} or _has_scan(graph, path):
        return "mixer"
    if "kernel" in kinds:
        return "convolution"
    if kinds:
        return "mixer"
    return "feed-forward" if any(graph[i].op in MATRIX_OPS for i in path) else "other"


def _branch_nodes(graph: Graph, add: ResidualAdd, *, start: int | None) -> AbstractSet[int]:
    if start is not None:
        return graph.nodes_between(start, add.branch) - {start}
    return add.path - add.mixing_nodes - {add.fork}


@dataclass(frozen=True, slots=True)
class BranchWalk:
    """Axis layouts and mixing operations of a branch."""

    add: ResidualAdd
    shape: Shape
    """Shape of the stream where the branch starts."""
    layouts: dict[int, Layout]
    """By node: which axes of the stream its axes come from."""
    steps: list[AxisMixing]
    """Operations of the branch that mix, without those inside a norm."""
    stream_axes: frozenset[int]
    """Axes along which parallel streams are mixed."""
    norms: list[Norm]

    @property
    def matrix_axes(self) -> frozenset[int]:
        """Axes along which matrices work."""
        return frozenset[int]().union(*(s.origins for s in self.steps if s.kind == "weights"))


def walk_branch(
    graph: Graph, add: ResidualAdd, *, norms: Mapping[int, Norm], start: int | None = None
) -> BranchWalk:
    """Follow the axes of the stream through a branch, or through its part after `start`."""
    path = _branch_nodes(graph, add, start=start)
    start = add.fork if start is None else start
    layouts, steps = trace_axes(graph, path | add.mixing_nodes, starts=[start])
    own = [norms[i] for i in sorted(path) if i in norms]
    # A norm written by hand reduces an axis, but does not mix it.
    norm_nodes = [graph.nodes_between(n.source, n.node) - {n.source} for n in own if n.by_hand]
    inside = path - frozenset[int]().union(*norm_nodes)
    mixing = [step.origins for step in steps if step.node in add.mixing_nodes]
    return BranchWalk(
        add=add,
        shape=graph[start].shape,
        layouts=layouts,
        steps=[step for step in steps if step.node in inside],
        stream_axes=frozenset[int]().union(*mixing),
        norms=own,
    )


def find_token_mixing(walk: BranchWalk, *, matrix_axes: frozenset[int]) -> list[AxisMixing]:
    """Return the operations of a branch that mix tokens: those along any axis but the features.

    Args:
        walk: the branch.
        matrix_axes: axes along which matrices of any branch of the model work.
    """
    if walk.add.width in walk.shape:
        features = -1 - walk.shape[::-1].index(walk.add.width)
    else:
        features = _find_feature_axis(walk, matrix_axes=matrix_axes)
    other_axes = walk.stream_axes | {features}
    return [step for step in walk.steps if step.kind != "channels" and step.origins - other_axes]


def attention_steps(steps: Sequence[AxisMixing]) -> list[int]:
    """Return the nodes where tokens attend to each other: products of two activations."""
    return sorted({step.node for step in steps if step.kind == "product"})


def _find_feature_axis(walk: BranchWalk, *, matrix_axes: frozenset[int]) -> int:
    """Return the axis of the stream that holds features.

    It is the axis of the first matrix or kernel, if the first norm uses the same one. A kernel also
    decides if there is no norm, or if no matrix works along the axes of the norm. Otherwise it is
    the last axis.
    """
    first = next((s for s in walk.steps if s.kind in ("channels", "weights")), None)
    if first is None or len(first.origins) != 1:
        return -1
    normalized = _normalized_axes(walk.layouts, walk.norms[0]) if walk.norms else None
    agrees = normalized is not None and first.origins == normalized
    if first.kind == "channels":
        agrees |= normalized is None or not normalized & matrix_axes
    return min(first.origins) if agrees else -1


def _normalized_axes(layouts: dict[int, Layout], norm: Norm) -> frozenset[int] | None:
    """Return the axes of the stream that a norm treats as features; None if not known."""
    layout = layouts.get(norm.source)
    if layout is None or len(layout) < 2:
        return None
    if norm.kind in ("group", "instance"):
        return collect_origins(layout[1:2])
    if norm.axes is None:
        return None
    others = [axis for i, axis in enumerate(layout) if i - len(layout) not in norm.axes]
    return collect_origins(others if norm.kind == "batch" else [layout[i] for i in norm.axes])


def attention_nodes(graph: Graph, nodes: AbstractSet[int]) -> list[int]:
    """Return the nodes among these where tokens attend to each other, whatever they start from."""
    starts = [i for i in nodes if graph[i].active and nodes.isdisjoint(graph[i].inputs)]
    steps = trace_axes(graph, nodes, starts=starts)[1]
    return attention_steps([step for step in steps if step.origins - {-1}])


def _is_foreign(graph: Graph, add: ResidualAdd, *, source: int) -> bool:
    """Whether an operand of an attention does not come from its own stream."""
    if source in add.path:
        return False
    if graph.reaches(add.fork, source):
        return False
    return graph[source].last_mixing >= 0 or graph[source].from_float_input


def _has_scan(graph: Graph, path: AbstractSet[int]) -> bool:
    """Whether tokens are computed one after another, each from those before it."""
    written: list[int] = []
    for index in sorted(path):
        node = graph[index]
        if node.op == "setitem":
            written += [i for i in node.inputs[-1:] if i in path]
        if node.op in ("stack", "cat") and _is_sequential(graph, path, nodes=list(node.inputs)):
            return True
    return _is_sequential(graph, path, nodes=written)


def _is_sequential(graph: Graph, path: AbstractSet[int], *, nodes: list[int]) -> bool:
    """Whether the first of some nodes reads few slices of a tensor and the last many, or vice
    versa: the time steps of a recurrence."""
    if len(nodes) < MIN_RECURRENCE_TOKENS:
        return False
    counts = [_count_slices(graph, path, index=part) for part in (nodes[0], nodes[-1])]
    return max(counts) >= MIN_RECURRENCE_TOKENS > min(counts)


def _count_slices(graph: Graph, path: AbstractSet[int], *, index: int) -> int:
    """Return how many slices of one tensor a node depends on, inside a branch."""
    slices: dict[int, int] = {}
    visited, waiting = {index}, [index]
    while waiting:
        node = graph[waiting.pop()]
        if node.op in SLICES and len(node.inputs) == 1:
            slices[node.inputs[0]] = slices.get(node.inputs[0], 0) + 1
        for i in node.inputs:
            if i in path and i not in visited:
                visited.add(i)
                waiting.append(i)
    return max(slices.values(), default=0)


def has_parallel_branches(graph: Graph, norms: Mapping[int, Norm], *, add: ResidualAdd) -> bool:
    """Whether the branch is the sum of an attention and another sub-layer with the same fork."""
    return find_parallel_paths(graph, norms, add=add) is not None


def find_branch_kinds(
    graph: Graph, norms: Mapping[int, Norm], *, add: ResidualAdd, kind: str
) -> tuple[str, ...]:
    """Return the kinds of all branches of an add: two if parallel branches are summed first.

    Args:
        graph: recorded graph.
        norms: all norms, by the node of their result.
        add: the residual add.
        kind: kind of its branch as a whole, which is that of the attention.
    """
    paths = find_parallel_paths(graph, norms, add=add)
    if paths is None:
        return (kind,)
    other = next(path for path in paths if not attention_nodes(graph, path)) - {add.fork}
    is_convolution = any(graph[i].op in CONVOLUTION for i in other)
    return kind, "convolution" if is_convolution else "feed-forward"


def find_parallel_paths(
    graph: Graph, norms: Mapping[int, Norm], *, add: ResidualAdd
) -> list[set[int]] | None:
    """Return the paths from the fork of an attention and another sub-layer that are summed.

    None if the branch is not such a sum.
    """
    index = add.branch
    for _ in range(MAX_PARALLEL_STEPS):
        node = graph[index]
        if node.op == "add" and len(node.inputs) == 2:
            paths = [graph.nodes_between(add.fork, i) for i in node.inputs]
            shared = (paths[0] & paths[1]) - {add.fork} - set(norms)
            both_mix = all(graph.has_mixing(path, exclude=add.fork) for path in paths)
            both_read_fork = all(
                i in path or add.fork in graph.ancestors(i, add.fork)
                for i, path in zip(node.inputs, paths, strict=True)
            )
            if not both_mix or not both_read_fork or graph.has_mixing(shared):
                return None
            attend = [bool(attention_nodes(graph, path)) for path in paths]
            return paths if attend[0] != attend[1] else None
        step = graph.parent_through_scale(index)
        if step is None:
            return None
        index = step[0]
    return None
