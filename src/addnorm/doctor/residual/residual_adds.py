"""Residual adds: additions that put a branch back onto the stream it was computed from.

The pattern. An addition `shortcut + branch` is residual if both operands come from one node, the
*fork*: the shortcut by operations that leave a stream what it is (casts, dropout, reshapes,
products with constants), the branch by a path that mixes features or tokens (a matrix, an
attention, a convolution).

Example: one Pre-LN block.

    model code                     nodes of the graph
    x = table(ids)                 1 embedding
    h = norm(x)                    2 layer_norm(1)
    f = linear(h)                  3 linear(2)
    x = x + 0.5 * f                4 mul(3, 0.5)
                                   5 add(1, 4)   <- the call under test

    find_residual_add(graph, {}, one=1, other=4)
    AddMatch(fork=1, shortcut=1, branch=4, path={1, 2, 3, 4})

The search tries both operands as the shortcut. It walks back from the shortcut and takes the first
node that the branch depends on. Then it requires an operation that mixes on the path from there to
the branch, which rejects `x - mean(x)`, rotary embeddings, biases and masks.

If the direct walk fails, other forms of a shortcut are tried: the fork of an earlier residual add
(parallel branches), a gated, sliced or normalized shortcut, a mixture of parallel streams
(`mixtures.py`), and a projection (`projections.py`).

The search runs while the model runs, before the addition is executed. Its result is an `AddMatch`;
the recorder turns it into a `ResidualAdd` once the node of the sum exists.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale, Shape
from addnorm.doctor.graph.ops import is_mixing
from addnorm.doctor.residual.mixtures import (
    StreamMixture,
    find_mixed_streams,
    find_mixture,
    find_streams,
)
from addnorm.doctor.residual.projections import find_projection
from addnorm.doctor.residual.shortcut_steps import (
    MAX_HOPS,
    find_gated_stream,
    find_normalized_input,
    find_sliced_stream,
    is_sublayer_output,
)

MAX_ARITHMETIC_NODES = 300
"""Distance within which a path without a mixing operation rules out an indirect shortcut."""
MAX_SHORTCUT_STEPS = 30
"""Steps of the walk along an indirect shortcut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddMatch:
    """Shortcut and branch of an addition that matches the residual pattern."""

    fork: int
    """Node that both operands come from."""
    shortcut: int
    branch: int
    path: frozenset[int]
    """Nodes on all paths from the fork to the branch, both included."""
    shortcut_scales: tuple[Scale, ...] = ()
    """Factors on the shortcut."""
    branch_scales: tuple[Scale, ...] = ()
    """Factors on the branch that belong to the addition itself, as `a` in `x + a * (f - x)`."""
    parallel_to: int | None = None
    """Earlier residual add whose branch reads the same fork."""
    mixture: StreamMixture | None = None
    """Mixture of parallel streams that the shortcut is (hyper-connections)."""
    difference_node: int | None = None
    """Node of `f - x` in `x + a * (f - x)`."""
    crossing: Literal["streams", "halves"] | None = None
    """What the branch reads instead of its own stream: another stream, or its other half."""
    has_projection: bool = False
    """Whether the shortcut passes through one matrix or convolution."""
    has_normed_shortcut: bool = False
    """Whether the shortcut is a normalized copy of what the branch reads."""
    is_gated: bool = False
    is_weighted: bool = False
    """Whether the branch enters a weighted sum of streams instead of an addition."""

    @property
    def is_mixed(self) -> bool:
        """Whether the shortcut is a mixture of parallel streams."""
        return self.mixture is not None

    @property
    def mixing_nodes(self) -> frozenset[int]:
        """Nodes that only mix parallel streams."""
        return frozenset() if self.mixture is None else self.mixture.mixing_nodes

    @property
    def width(self) -> int:
        """Number of features of a token where streams are mixed; 0 elsewhere."""
        return 0 if self.mixture is None else self.mixture.width

    @property
    def is_crossed(self) -> bool:
        """Whether the branch reads another stream than the one it is added to (reversible)."""
        return self.crossing is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualAdd(AddMatch):
    """A residual add of a recorded graph."""

    node: int
    """Node of the sum."""
    op: str
    module: str
    """Path of the module that executes the addition."""

    @classmethod
    def from_match(cls, match: AddMatch, *, node: int, op: str, module: str) -> "ResidualAdd":
        """Return the residual add that a match becomes once its sum is a node."""
        values = {field.name: getattr(match, field.name) for field in fields(AddMatch)}
        return cls(**values, node=node, op=op, module=module)


Adds = Mapping[int, ResidualAdd]
"""Residual adds by the node of their sum."""


def find_residual_add(graph: Graph, adds: Adds, *, one: int, other: int) -> AddMatch | None:
    """Match `one + other` against the residual pattern.

    Args:
        graph: graph up to the addition; the sum itself is not part of it
        adds: residual adds found so far
        one: node of the first operand
        other: node of the second operand
    """
    shape = _broadcast_shape(graph[one].shape, graph[other].shape)
    if shape is None or math.prod(shape) < 2:
        return None
    pairs = [
        (s, f)
        for s, f in ((one, other), (other, one))
        if graph[s].size >= math.prod(shape) and not _is_token_scalar(graph[f].shape, shape)
    ]
    for shortcut, branch in pairs:
        match = _find_weighted_start(
            graph, adds, shortcut=shortcut, branch=branch
        ) or find_plain_add(graph, adds, shortcut=shortcut, branch=branch)
        if match is not None:
            return (
                _find_mixed_add(graph, adds, shortcut=match.shortcut, branch=match.branch) or match
            )
    for shortcut, branch in pairs:
        match = _find_mixed_add(
            graph, adds, shortcut=shortcut, branch=branch
        ) or _find_indirect_add(graph, adds, shortcut=shortcut, branch=branch)
        if match is not None:
            return match
    projection = find_projection(graph, one, other=other)
    if projection is None:
        return None
    return AddMatch(
        fork=projection.fork, shortcut=projection.shortcut, branch=projection.branch,
        path=projection.path, has_projection=True,
    )  # fmt: skip


def find_fused_add(graph: Graph, shortcut: int, *, branch: int) -> AddMatch | None:
    """Match a call that computes the last product of the branch and the sum (addmm, GRU cell)."""
    for fork, scales in graph.trace_back(shortcut):
        if graph.reaches(fork, branch):
            path = frozenset(graph.nodes_between(fork, branch))
            return AddMatch(
                fork=fork, shortcut=shortcut, branch=branch, path=path, shortcut_scales=scales
            )
    return None


def find_plain_add(graph: Graph, adds: Adds, *, shortcut: int, branch: int) -> AddMatch | None:
    """Match a shortcut that leads straight back to the fork, or to that of an earlier add."""
    interpolation = _find_interpolation(graph, shortcut, branch=branch)
    if interpolation is not None:
        return interpolation
    for fork, scales, earlier_add in _candidate_forks(graph, adds, shortcut=shortcut):
        if fork == branch:
            return None
        if not graph.reaches(fork, branch):
            continue
        if earlier_add is not None and _shares_branch(graph, adds, one=earlier_add, branch=branch):
            return None
        path = frozenset(graph.nodes_between(fork, branch))
        if not graph.has_mixing(path, exclude=fork):
            return None
        match = AddMatch(
            fork=fork, shortcut=shortcut, branch=branch, path=path, shortcut_scales=scales
        )
        crossed = _find_crossed_add(graph, adds, match=match)
        if crossed is None:
            return replace(match, parallel_to=earlier_add)
        path = frozenset(graph.nodes_between(crossed, branch))
        return replace(match, fork=crossed, path=path, crossing="streams")
    return None


def _candidate_forks(
    graph: Graph, adds: Adds, *, shortcut: int
) -> Iterator[tuple[int, tuple[Scale, ...], int | None]]:
    """Yield possible forks of a shortcut, the nearest first: (fork, scales, earlier add).

    In `x + attention(x) + ffn(x)` the shortcut of the second addition is the sum of the first.
    Past that sum the search continues at its fork, `x`.
    """
    chain = graph.trace_back(shortcut)
    for fork, scales in chain:
        yield fork, scales, None
    last, scales = chain[-1]
    for _ in range(MAX_HOPS):
        if last not in adds:
            return
        yield adds[last].fork, scales, last
        last = adds[last].fork


def _find_mixed_add(graph: Graph, adds: Adds, *, shortcut: int, branch: int) -> AddMatch | None:
    """Match parallel streams, mixed with each other, and a branch that reads a mixture of them."""
    mixture = find_mixture(graph, adds, shortcut=shortcut, branch=branch)
    if mixture is None:
        return None
    path = frozenset(graph.nodes_between(mixture.fork, branch))
    return AddMatch(fork=mixture.fork, shortcut=shortcut, branch=branch, path=path, mixture=mixture)


def _is_token_scalar(branch: Shape, total: Shape) -> bool:
    """Return whether an operand has one number per token, as a mean: then it is not a branch."""
    return len(total) < 4 and (not branch or branch[-1] == 1 < total[-1])


def _broadcast_shape(one: Shape, other: Shape) -> Shape | None:
    length = max(len(one), len(other))
    one, other = (1,) * (length - len(one)) + one, (1,) * (length - len(other)) + other
    if any(a != b and 1 not in (a, b) for a, b in zip(one, other, strict=True)):
        return None
    return tuple(max(pair) for pair in zip(one, other, strict=True))


def _find_weighted_start(
    graph: Graph, adds: Adds, *, shortcut: int, branch: int
) -> AddMatch | None:
    """Match a sum whose first term is the branch of an earlier weighted sum of streams."""
    for node, add in adds.items():
        if add.is_weighted and add.branch == shortcut and graph.reaches(node, branch):
            path = frozenset(graph.nodes_between(node, branch))
            return AddMatch(fork=node, shortcut=shortcut, branch=branch, path=path)
    return None


def _shares_branch(graph: Graph, adds: Adds, *, one: int, branch: int) -> bool:
    """Return whether two sums contain the same branch, so that adding them mixes two streams."""
    origin = graph.trace_back(adds[one].branch)[-1][0]
    others = (i for i in find_streams(graph, adds, start=branch) if i in adds)
    return any(graph.trace_back(adds[i].branch)[-1][0] == origin for i in others)


def _find_crossed_add(graph: Graph, adds: Adds, *, match: AddMatch) -> int | None:
    """Return the sum of another stream that every path from the fork to the branch crosses."""
    fork, branch = match.fork, match.branch
    last = max((i for i in match.path if i in adds and i != fork), default=None)
    if last is None or last == branch or fork not in adds[last].path:
        return None
    is_own_stream = any(i == fork for i, _ in graph.trace_back(adds[last].shortcut))
    if (
        is_own_stream
        or not is_sublayer_output(graph, branch)
        or graph.has_path_avoiding(fork, branch, blocked={last})
    ):
        return None
    return last


def _find_interpolation(graph: Graph, shortcut: int, *, branch: int) -> AddMatch | None:
    """Match `x + a * (f - x)`, a step from the shortcut towards the branch `f`.

    `a` is a number, a weight, or computed from an input; the last form is a gate.
    """
    end, scales = graph.trace_back(branch)[-1]
    factors = [end, *(graph[end].inputs if graph[end].op == "mul" else ())]
    shortcut_chain = [i for i, _ in graph.trace_back(shortcut)]
    for difference, _ in (graph.trace_back(i)[-1] for i in factors):
        node = graph[difference]
        if node.op != "sub" or len(node.inputs) != 2 or node.operands[1].node not in shortcut_chain:
            continue
        target = node.operands[0].node
        match = find_plain_add(graph, {}, shortcut=shortcut, branch=target) or _find_indirect_add(
            graph, {}, shortcut=shortcut, branch=target
        )
        if match is not None:
            return replace(
                match,
                branch_scales=scales,
                difference_node=difference,
                is_gated=match.is_gated or difference != end,
            )
    return None


def _find_indirect_add(graph: Graph, adds: Adds, *, shortcut: int, branch: int) -> AddMatch | None:
    """Match a shortcut that is gated, normalized, shifted, sliced, or a mixture of streams.

    The walk goes back along the shortcut and notes what it crosses. The first node that the branch
    depends on, after at least one such step, is the fork.
    """
    crossed: set[str] = set()
    index, earlier_add = shortcut, None
    ends_in_sublayer = is_mixing(graph[graph.trace_back(branch)[-1][0]].op)
    for _ in range(MAX_SHORTCUT_STEPS):
        if index == branch:
            return None
        if graph[branch].last_mixing <= index:
            # No operation mixes between here and the branch: plain arithmetic, if it is near.
            is_near = branch - index < MAX_ARITHMETIC_NODES
            if crossed and is_near and graph.reaches(index, branch):
                return None
        elif crossed and graph.reaches(index, branch):
            path = frozenset(graph.nodes_between(index, branch))
            if not graph.has_mixing(path, exclude=index):
                return None
            # A slice of a product over streams: the branch reads the other slice.
            is_blended = "mixture" in crossed or (
                "slice" in crossed and find_mixed_streams(graph, index) is not None
            )
            return AddMatch(
                fork=index,
                shortcut=shortcut,
                branch=branch,
                path=path,
                parallel_to=earlier_add,
                mixture=StreamMixture(index) if is_blended else None,
                is_gated="gate" in crossed and not is_blended,
                has_normed_shortcut="norm" in crossed,
            )
        step = graph.parent_through_scale(index)
        if step is not None:
            index = step[0]
        elif "norm" in crossed and earlier_add is None and index in adds and ends_in_sublayer:
            index, earlier_add = adds[index].fork, index  # N(x + f(x)) + g(f(x))
        elif (crossing := _step_along_shortcut(graph, index)) is not None:
            index, what = crossing
            crossed.add(what)
        else:
            return None
    return None


def _step_along_shortcut(graph: Graph, index: int) -> tuple[int, str] | None:
    """Return the node before a bias, gate, mixture, norm or slice, and which of them it was."""
    if graph[index].op in ("add", "sub") and len(graph[index].inputs) == 1:
        return graph[index].inputs[0], "bias"
    steps = {
        "gate": find_gated_stream,
        "mixture": find_mixed_streams,
        "norm": find_normalized_input,
        "slice": find_sliced_stream,
    }
    for what, find_input in steps.items():
        source = find_input(graph, index)
        if source is not None:
            return source, what
    return None
