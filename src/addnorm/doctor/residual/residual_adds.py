"""Residual joins: which additions put a branch back onto the stream that it was made of."""

import math
from dataclasses import dataclass, field

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.graph.ops import NAMED_NORMS, SLICES, mixes
from addnorm.doctor.residual.mixtures import mixed, mixture_of, streams_of
from addnorm.doctor.residual.projections import projected

HOPS = 4
"""Sums, or norms and biases, that are looked behind."""
NORM_NODES = 40
"""Nodes that a norm written out may have."""
ARITHMETIC = 300
"""Nodes over which a way without a branch is looked for."""
GATES = frozenset({"sigmoid", "hardsigmoid", "tanh", "softmax"})


@dataclass(slots=True)
class Join:
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
    scales: tuple[Scale, ...] = ()
    """Factors on the shortcut."""
    own: tuple[Scale, ...] = ()
    """Factors on the branch that the addition itself carries."""
    via: int = -1
    """The join it stands beside: both branches read the same fork."""
    projection: bool = False
    gated: bool = False
    mixed: bool = False
    """Whether the shortcut is a mixture of parallel streams."""
    light: set[int] = field(default_factory=set)
    """Nodes that only mix them."""
    width: int = 0
    """Features of a token, where streams are mixed."""
    towards: int = -1
    """The node of branch - x, where it is x + a * (branch - x)."""
    normed: bool = False
    """Whether the shortcut is a normalized copy of what the branch reads."""
    crossed: bool = False
    """Whether the branch reads another stream than the one it is added to (reversible)."""
    half: bool = False
    """Whether both are halves of one stream."""
    weighed: bool = False
    """Whether the branch takes part in a weighted sum of streams rather than in an addition."""
    signs: dict[str, float] = field(default_factory=dict)


def find(graph: Graph, joins: dict[int, Join], *, one: int, other: int) -> Join | None:
    """The join that `one + other` makes, if it makes one."""
    shape = _broadcast(graph[one].shape, graph[other].shape)
    if shape is None or math.prod(shape) < 2:
        return None
    pairs = [
        (s, f)
        for s, f in ((one, other), (other, one))
        if graph[s].size >= math.prod(shape) and not _one_number_a_token(graph[f].shape, shape)
    ]
    for shortcut, branch in pairs:
        found = _begun(graph, joins, shortcut=shortcut, branch=branch) or plain(
            graph, joins, shortcut=shortcut, branch=branch
        )
        if found is not None:
            return _hyper(graph, joins, shortcut=found.shortcut, branch=found.branch) or found
    for shortcut, branch in pairs:
        found = _hyper(graph, joins, shortcut=shortcut, branch=branch) or _loose(
            graph, joins, shortcut=shortcut, branch=branch
        )
        if found is not None:
            return found
    way = projected(graph, one, other=other)
    return None if way is None else Join(way[0], way[1], way[2], way[3], projection=True)


def _hyper(graph: Graph, joins: dict[int, Join], *, shortcut: int, branch: int) -> Join | None:
    """Parallel streams, mixed among themselves, and a branch that reads a mixture of them."""
    found = mixed(graph, joins, shortcut=shortcut, branch=branch)
    if found is None:
        return None
    join = Join(found.fork, shortcut, branch, graph.between(found.fork, branch), mixed=True)
    join.light, join.width = found.light, found.width
    return join


def _one_number_a_token(branch: tuple[int, ...], total: tuple[int, ...]) -> bool:
    """A statistic of each token, such as its mean: no branch."""
    return len(total) < 4 and (not branch or branch[-1] == 1 < total[-1])


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    length = max(len(one), len(other))
    one, other = (1,) * (length - len(one)) + one, (1,) * (length - len(other)) + other
    if any(a != b and 1 not in (a, b) for a, b in zip(one, other, strict=True)):
        return None
    return tuple(max(pair) for pair in zip(one, other, strict=True))


def fused(graph: Graph, shortcut: int, *, branch: int) -> Join | None:
    """A join whose last product is part of the addition (addmm) or of a cell (GRU)."""
    for fork, scales in graph.chain(shortcut):
        if graph.reaches(fork, branch):
            return Join(fork, shortcut, branch, graph.between(fork, branch), scales=scales)
    return None


def _begun(graph: Graph, joins: dict[int, Join], *, shortcut: int, branch: int) -> Join | None:
    """A sum that begins with a branch which the streams it was mixed with have as well."""
    for node, join in joins.items():
        if join.weighed and join.branch == shortcut and graph.reaches(node, branch):
            return Join(node, shortcut, branch, graph.between(node, branch))
    return None


def plain(graph: Graph, joins: dict[int, Join], *, shortcut: int, branch: int) -> Join | None:
    """A shortcut that goes straight back to where the branch began, or on the way to it."""
    step = _interpolation(graph, shortcut, branch=branch)
    if step is not None:
        return step
    chain = graph.chain(shortcut)
    forks = [(fork, scales, -1) for fork, scales in chain]
    last, scales = chain[-1]
    for _ in range(HOPS):  # x + attention(x) + feed_forward(x): look behind the first sum
        if last not in joins:
            break
        forks.append((joins[last].fork, scales, last))
        last = joins[last].fork
    for fork, scales, via in forks:
        if fork == branch:
            return None
        if graph.reaches(fork, branch):
            if via >= 0 and _beside(graph, joins, one=via, branch=branch):
                return None
            path = graph.between(fork, branch)
            if not graph.mixing(path, but=fork):
                return None
            other = _crossed(graph, joins, fork=fork, branch=branch, path=path)
            if other is not None:
                path = graph.between(other, branch)
                return Join(other, shortcut, branch, path, scales=scales, crossed=True)
            return Join(fork, shortcut, branch, path, scales=scales, via=via)
    return None


def _beside(graph: Graph, joins: dict[int, Join], *, one: int, branch: int) -> bool:
    """Whether two sums hold the same branch: parallel streams, whose sum is a mixture."""
    mine = graph.chain(joins[one].branch)[-1][0]
    others = (i for i in streams_of(graph, joins, start=branch) if i in joins)
    return any(graph.chain(joins[i].branch)[-1][0] == mine for i in others)


def _crossed(
    graph: Graph, joins: dict[int, Join], *, fork: int, branch: int, path: set[int]
) -> int | None:
    """The sum of another stream, itself made of this one, through which every way leads."""
    last = max((i for i in path if i in joins and i != fork), default=None)
    if last is None or last == branch or fork not in joins[last].path:
        return None
    own = any(i == fork for i, _ in graph.chain(joins[last].shortcut))
    if own or not fresh(graph, branch) or graph.avoids(fork, branch, closed={last}):
        return None
    return last


def _interpolation(graph: Graph, shortcut: int, *, branch: int) -> Join | None:
    """x + a * (u - x): a step from the shortcut towards the branch. a may be made of an input."""
    end, scales = graph.chain(branch)[-1]
    ways = [end, *(graph[end].ins if graph[end].op == "mul" else ())]
    passed = [i for i, _ in graph.chain(shortcut)]
    for way in (graph.chain(i)[-1] for i in ways):
        node = graph[way[0]]
        if node.op != "sub" or len(node.ins) != 2 or node.operands[1].node not in passed:
            continue
        target = node.operands[0].node
        found = plain(graph, {}, shortcut=shortcut, branch=target) or _loose(
            graph, {}, shortcut=shortcut, branch=target
        )
        if found is not None:
            found.own, found.towards = scales, way[0]
            found.gated |= way[0] != end
            return found
    return None


def _loose(graph: Graph, joins: dict[int, Join], *, shortcut: int, branch: int) -> Join | None:
    """Shortcuts that are gated, sliced, or a mixture of a few parallel streams."""
    gated = blended = normed = cut = shifted = False
    index, via = shortcut, -1
    made = mixes(graph[graph.chain(branch)[-1][0]].op)  # by a sub-layer: no stream
    for _ in range(30):
        if index == branch:
            return None
        changed = gated or blended or normed or cut or shifted
        if graph[branch].mixed <= index:  # nothing mixes on the way: arithmetic, if it is near
            if changed and branch - index < ARITHMETIC and graph.reaches(index, branch):
                return None
        elif changed and graph.reaches(index, branch):
            path = graph.between(index, branch)
            if not graph.mixing(path, but=index):
                return None
            join = Join(index, shortcut, branch, path, via=via)
            blended |= cut and mixture_of(graph, index) is not None  # its other slice is read
            join.gated, join.mixed, join.normed = gated and not blended, blended, normed
            return join
        step = graph.back(index)
        if step is not None:
            index = step[0]
        elif normed and via < 0 and index in joins and made:
            index, via = joins[index].fork, index  # N(x + f(x)) + g(f(x))
        elif graph[index].op in ("add", "sub") and len(graph[index].ins) == 1:
            index, shifted = graph[index].ins[0], True  # a bias
        elif (stream := gate_of(graph, index)) is not None:
            index, gated = stream, True
        elif (stream := mixture_of(graph, index)) is not None:
            index, blended = stream, True
        elif (stream := _normalized(graph, index)) is not None:
            index, normed = stream, True
        elif (stream := part_of(graph, index)) is not None:
            index, cut = stream, True
        else:
            return None
    return None


def fresh(graph: Graph, index: int) -> bool:
    """Whether a node is what a sub-layer made, and no stream: behind norms, biases and scales
    something mixes."""
    for _ in range(HOPS):
        index = graph.chain(index)[-1][0]
        node = graph[index]
        if mixes(node.op):
            return True
        if not (node.op in NAMED_NORMS or (node.op in ("add", "sub") and len(node.ins) == 1)):
            return False
        index = node.ins[0]
    return False


def part_of(graph: Graph, index: int) -> int | None:
    """The stream that a few tokens were taken from, or put in front of."""
    node = graph[index]
    if node.op in SLICES and len(node.ins) == 1:
        return node.ins[0]
    if node.op == "cat" and len(node.ins) == 2:
        large = max(node.ins, key=lambda i: graph[i].size)
        return large if graph[large].size * 3 > node.size * 2 else None
    return None


def _normalized(graph: Graph, index: int) -> int | None:
    """What was divided by a statistic of itself, or went through a norm."""
    node = graph[index]
    if node.op in NAMED_NORMS:
        return node.ins[0]
    if node.op not in ("mul", "div", "sub") or len(node.ins) != 2:
        return None
    small, large = sorted(node.ins, key=lambda i: graph[i].size)
    if graph[small].size * 2 > graph[large].size:
        return None
    floor = max(0, index - NORM_NODES)
    return large if graph.ancestors(large, floor) & graph.ancestors(small, floor) else None


def gate_of(graph: Graph, index: int) -> int | None:
    """The stream in gate * stream; the gate is a squashed function of something."""
    node = graph[index]
    if node.op != "mul" or len(node.ins) != 2:
        return None
    squashed = [_squashed(graph, i) for i in node.ins]
    if squashed[0] == squashed[1]:
        return None
    return node.ins[squashed.index(False)]


def _squashed(graph: Graph, index: int) -> bool:
    for _ in range(6):
        node = graph[index]
        if node.op in GATES:
            return True
        if node.op in ("rsub", "sub", "add") and len(node.ins) == 1:
            index = node.ins[0]
            continue
        step = graph.back(index)
        if step is None:
            return False
        index = step[0]
    return False
