"""Residual joins: which additions put a branch back onto the stream that it was made of."""

import math
from dataclasses import dataclass, field

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.graph.ops import NAMED_NORMS, SLICES, is_mixing
from addnorm.doctor.residual.mixtures import find_mixed_streams, find_mixture, find_streams
from addnorm.doctor.residual.projections import find_projection

MAX_HOPS = 4
"""Sums, or norms and biases, that are looked behind."""
MAX_NORM_NODES = 40
"""Nodes that a norm written out may have."""
MAX_ARITHMETIC_NODES = 300
"""Nodes over which a way without a branch is looked for."""
GATE_OPS = frozenset({"sigmoid", "hardsigmoid", "tanh", "softmax"})


@dataclass(slots=True)
class ResidualAdd:
    """shortcut + branch, where both come from the same fork."""

    fork: int
    shortcut: int
    branch: int
    path: set[int]
    """Everything from the fork to the branch."""
    node: int = -1
    """The sum."""
    op: str = "add"
    module: str = ""
    shortcut_scales: tuple[Scale, ...] = ()
    """Factors on the shortcut."""
    branch_scales: tuple[Scale, ...] = ()
    """Factors on the branch that the addition itself carries."""
    parallel_to: int = -1
    """The join it stands beside: both branches read the same fork."""
    has_projection: bool = False
    is_gated: bool = False
    is_mixed: bool = False
    """Whether the shortcut is a mixture of parallel streams."""
    mixing_nodes: set[int] = field(default_factory=set)
    """Nodes that only mix them."""
    width: int = 0
    """Features of a token, where streams are mixed."""
    difference_node: int = -1
    """The node of branch - x, where it is x + a * (branch - x)."""
    has_normed_shortcut: bool = False
    """Whether the shortcut is a normalized copy of what the branch reads."""
    is_crossed: bool = False
    """Whether the branch reads another stream than the one it is added to (reversible)."""
    is_half: bool = False
    """Whether both are halves of one stream."""
    is_weighted: bool = False
    """Whether the branch takes part in a weighted sum of streams rather than in an addition."""
    stats: dict[str, float] = field(default_factory=dict)


def find_residual_add(
    graph: Graph, adds: dict[int, ResidualAdd], *, one: int, other: int
) -> ResidualAdd | None:
    """The join that `one + other` makes, if it makes one."""
    shape = _broadcast_shape(graph[one].shape, graph[other].shape)
    if shape is None or math.prod(shape) < 2:
        return None
    pairs = [
        (s, f)
        for s, f in ((one, other), (other, one))
        if graph[s].size >= math.prod(shape) and not _is_token_scalar(graph[f].shape, shape)
    ]
    for shortcut, branch in pairs:
        found = _find_weighted_start(
            graph, adds, shortcut=shortcut, branch=branch
        ) or find_plain_add(graph, adds, shortcut=shortcut, branch=branch)
        if found is not None:
            return (
                _find_mixed_add(graph, adds, shortcut=found.shortcut, branch=found.branch) or found
            )
    for shortcut, branch in pairs:
        found = _find_mixed_add(
            graph, adds, shortcut=shortcut, branch=branch
        ) or _find_indirect_add(graph, adds, shortcut=shortcut, branch=branch)
        if found is not None:
            return found
    way = find_projection(graph, one, other=other)
    return None if way is None else ResidualAdd(way[0], way[1], way[2], way[3], has_projection=True)


def _find_mixed_add(
    graph: Graph, adds: dict[int, ResidualAdd], *, shortcut: int, branch: int
) -> ResidualAdd | None:
    """Parallel streams, mixed among themselves, and a branch that reads a mixture of them."""
    found = find_mixture(graph, adds, shortcut=shortcut, branch=branch)
    if found is None:
        return None
    join = ResidualAdd(
        found.fork, shortcut, branch, graph.nodes_between(found.fork, branch), is_mixed=True
    )
    join.mixing_nodes, join.width = found.mixing_nodes, found.width
    return join


def _is_token_scalar(branch: tuple[int, ...], total: tuple[int, ...]) -> bool:
    """A statistic of each token, such as its mean: no branch."""
    return len(total) < 4 and (not branch or branch[-1] == 1 < total[-1])


def _broadcast_shape(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    length = max(len(one), len(other))
    one, other = (1,) * (length - len(one)) + one, (1,) * (length - len(other)) + other
    if any(a != b and 1 not in (a, b) for a, b in zip(one, other, strict=True)):
        return None
    return tuple(max(pair) for pair in zip(one, other, strict=True))


def find_fused_add(graph: Graph, shortcut: int, *, branch: int) -> ResidualAdd | None:
    """A join whose last product is part of the addition (addmm) or of a cell (GRU)."""
    for fork, scales in graph.trace_back(shortcut):
        if graph.reaches(fork, branch):
            return ResidualAdd(
                fork, shortcut, branch, graph.nodes_between(fork, branch), shortcut_scales=scales
            )
    return None


def _find_weighted_start(
    graph: Graph, adds: dict[int, ResidualAdd], *, shortcut: int, branch: int
) -> ResidualAdd | None:
    """A sum that begins with a branch which the streams it was mixed with have as well."""
    for node, join in adds.items():
        if join.is_weighted and join.branch == shortcut and graph.reaches(node, branch):
            return ResidualAdd(node, shortcut, branch, graph.nodes_between(node, branch))
    return None


def find_plain_add(
    graph: Graph, adds: dict[int, ResidualAdd], *, shortcut: int, branch: int
) -> ResidualAdd | None:
    """A shortcut that goes straight back to where the branch began, or on the way to it."""
    step = _find_interpolation(graph, shortcut, branch=branch)
    if step is not None:
        return step
    chain = graph.trace_back(shortcut)
    forks = [(fork, scales, -1) for fork, scales in chain]
    last, scales = chain[-1]
    for _ in range(MAX_HOPS):  # x + attention(x) + feed_forward(x): look behind the first sum
        if last not in adds:
            break
        forks.append((adds[last].fork, scales, last))
        last = adds[last].fork
    for fork, scales, via in forks:
        if fork == branch:
            return None
        if graph.reaches(fork, branch):
            if via >= 0 and _shares_branch(graph, adds, one=via, branch=branch):
                return None
            path = graph.nodes_between(fork, branch)
            if not graph.has_mixing(path, exclude=fork):
                return None
            other = _find_crossed_add(graph, adds, fork=fork, branch=branch, path=path)
            if other is not None:
                path = graph.nodes_between(other, branch)
                return ResidualAdd(
                    other, shortcut, branch, path, shortcut_scales=scales, is_crossed=True
                )
            return ResidualAdd(
                fork, shortcut, branch, path, shortcut_scales=scales, parallel_to=via
            )
    return None


def _shares_branch(graph: Graph, adds: dict[int, ResidualAdd], *, one: int, branch: int) -> bool:
    """Whether two sums hold the same branch: parallel streams, whose sum is a mixture."""
    mine = graph.trace_back(adds[one].branch)[-1][0]
    others = (i for i in find_streams(graph, adds, start=branch) if i in adds)
    return any(graph.trace_back(adds[i].branch)[-1][0] == mine for i in others)


def _find_crossed_add(
    graph: Graph, adds: dict[int, ResidualAdd], *, fork: int, branch: int, path: set[int]
) -> int | None:
    """The sum of another stream, itself made of this one, through which every way leads."""
    last = max((i for i in path if i in adds and i != fork), default=None)
    if last is None or last == branch or fork not in adds[last].path:
        return None
    own = any(i == fork for i, _ in graph.trace_back(adds[last].shortcut))
    if (
        own
        or not is_sublayer_output(graph, branch)
        or graph.has_path_avoiding(fork, branch, blocked={last})
    ):
        return None
    return last


def _find_interpolation(graph: Graph, shortcut: int, *, branch: int) -> ResidualAdd | None:
    """x + a * (u - x): a step from the shortcut towards the branch. a may be made of an input."""
    end, scales = graph.trace_back(branch)[-1]
    ways = [end, *(graph[end].inputs if graph[end].op == "mul" else ())]
    passed = [i for i, _ in graph.trace_back(shortcut)]
    for way in (graph.trace_back(i)[-1] for i in ways):
        node = graph[way[0]]
        if node.op != "sub" or len(node.inputs) != 2 or node.operands[1].node not in passed:
            continue
        target = node.operands[0].node
        found = find_plain_add(graph, {}, shortcut=shortcut, branch=target) or _find_indirect_add(
            graph, {}, shortcut=shortcut, branch=target
        )
        if found is not None:
            found.branch_scales, found.difference_node = scales, way[0]
            found.is_gated |= way[0] != end
            return found
    return None


def _find_indirect_add(
    graph: Graph, adds: dict[int, ResidualAdd], *, shortcut: int, branch: int
) -> ResidualAdd | None:
    """Shortcuts that are gated, sliced, or a mixture of a few parallel streams."""
    gated = blended = normed = cut = shifted = False
    index, via = shortcut, -1
    made = is_mixing(graph[graph.trace_back(branch)[-1][0]].op)  # by a sub-layer: no stream
    for _ in range(30):
        if index == branch:
            return None
        changed = gated or blended or normed or cut or shifted
        if (
            graph[branch].last_mixing <= index
        ):  # nothing mixes on the way: arithmetic, if it is near
            if changed and branch - index < MAX_ARITHMETIC_NODES and graph.reaches(index, branch):
                return None
        elif changed and graph.reaches(index, branch):
            path = graph.nodes_between(index, branch)
            if not graph.has_mixing(path, exclude=index):
                return None
            join = ResidualAdd(index, shortcut, branch, path, parallel_to=via)
            blended |= (
                cut and find_mixed_streams(graph, index) is not None
            )  # its other slice is read
            join.is_gated, join.is_mixed, join.has_normed_shortcut = (
                gated and not blended,
                blended,
                normed,
            )
            return join
        step = graph.parent_through_scale(index)
        if step is not None:
            index = step[0]
        elif normed and via < 0 and index in adds and made:
            index, via = adds[index].fork, index  # N(x + f(x)) + g(f(x))
        elif graph[index].op in ("add", "sub") and len(graph[index].inputs) == 1:
            index, shifted = graph[index].inputs[0], True  # a bias
        elif (stream := find_gated_stream(graph, index)) is not None:
            index, gated = stream, True
        elif (stream := find_mixed_streams(graph, index)) is not None:
            index, blended = stream, True
        elif (stream := _find_normalized_input(graph, index)) is not None:
            index, normed = stream, True
        elif (stream := find_sliced_stream(graph, index)) is not None:
            index, cut = stream, True
        else:
            return None
    return None


def is_sublayer_output(graph: Graph, index: int) -> bool:
    """Whether a node is what a sub-layer made, and no stream: behind norms, biases and scales
    something mixes."""
    for _ in range(MAX_HOPS):
        index = graph.trace_back(index)[-1][0]
        node = graph[index]
        if is_mixing(node.op):
            return True
        if not (node.op in NAMED_NORMS or (node.op in ("add", "sub") and len(node.inputs) == 1)):
            return False
        index = node.inputs[0]
    return False


def find_sliced_stream(graph: Graph, index: int) -> int | None:
    """The stream that a few tokens were taken from, or put in front of."""
    node = graph[index]
    if node.op in SLICES and len(node.inputs) == 1:
        return node.inputs[0]
    if node.op == "cat" and len(node.inputs) == 2:
        large = max(node.inputs, key=lambda i: graph[i].size)
        return large if graph[large].size * 3 > node.size * 2 else None
    return None


def _find_normalized_input(graph: Graph, index: int) -> int | None:
    """What was divided by a statistic of itself, or went through a norm."""
    node = graph[index]
    if node.op in NAMED_NORMS:
        return node.inputs[0]
    if node.op not in ("mul", "div", "sub") or len(node.inputs) != 2:
        return None
    small, large = sorted(node.inputs, key=lambda i: graph[i].size)
    if graph[small].size * 2 > graph[large].size:
        return None
    floor = max(0, index - MAX_NORM_NODES)
    return large if graph.ancestors(large, floor) & graph.ancestors(small, floor) else None


def find_gated_stream(graph: Graph, index: int) -> int | None:
    """The stream in gate * stream; the gate is a squashed function of something."""
    node = graph[index]
    if node.op != "mul" or len(node.inputs) != 2:
        return None
    squashed = [_is_gate(graph, i) for i in node.inputs]
    if squashed[0] == squashed[1]:
        return None
    return node.inputs[squashed.index(False)]


def _is_gate(graph: Graph, index: int) -> bool:
    for _ in range(6):
        node = graph[index]
        if node.op in GATE_OPS:
            return True
        if node.op in ("rsub", "sub", "add") and len(node.inputs) == 1:
            index = node.inputs[0]
            continue
        step = graph.parent_through_scale(index)
        if step is None:
            return False
        index = step[0]
    return False
