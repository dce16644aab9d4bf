"""Norms written by hand, in any form: a tensor divided by the magnitude of itself.

Example: an RMS norm.

    model code                                    nodes
    ms = x.pow(2).mean(-1, keepdim=True)          2 pow(1), 3 mean(2)
    y = x * torch.rsqrt(ms + 1e-6)                4 add(3, 1e-6), 5 rsqrt(4), 6 mul(1, 5)

    find_handwritten_norm(graph, node 6)
    Norm(node=6, source=1, kind="rms", eps=1e-6, axes=(-1,), by_hand=True)

A product or quotient of two activations is a norm if

1. one factor is at most half as large as the other: the statistic (node 5);
2. a walk back from the statistic over light operations meets a root and a reduction
   (`_find_magnitude`: rsqrt and mean), and no operation that mixes or squashes;
3. value and statistic come from the same tensor (`trace_to_base` of both ends at node 1).

If a mean is subtracted on either walk it is a layer norm. If the magnitude is a length and not the
root of a mean, it is an L2 norm. A magnitude of absolute values is none of these: x / mean|x| has
the kind "mean_abs", x / sum|x| is "l1", x / max|x| is "max_abs", and x / max(x) is "max".
"""

import math
from dataclasses import dataclass

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node
from addnorm.doctor.graph.ops import (
    NAMED_NORMS,
    NONLINEAR,
    PASS_THROUGH,
    PRODUCT,
    REDUCTIONS,
    ROOTS,
    is_mixing,
)

MAX_STATISTIC_NODES = 24
"""Maximum number of nodes of a statistic."""
MAX_BASE_STEPS = 12
"""Maximum number of steps from a value back to the tensor that is normalized."""
MAX_MEAN_STEPS = 6
"""Maximum number of steps from the subtracted term back to the mean."""

VARIANCES = frozenset({"var", "std", "var_mean", "std_mean"})


@dataclass(frozen=True, slots=True)
class Norm:
    """One use of a norm."""

    node: int
    """Node of the result."""
    source: int
    """Node of the input."""
    kind: str
    """layer, rms, l2, l1, mean_abs, max_abs, max, batch, group, instance, dyt or derf."""
    path: str
    """Path of the module that executes it."""
    eps: float | None = None
    axes: tuple[int, ...] | None = None
    """Axes of the source that the statistics reduce, counted from the end; None if not known."""
    gain: bool = False
    """Whether the operation includes the gain."""
    weights: tuple[str, ...] = ()
    """Names of the weights that the operation reads."""
    by_hand: bool = False
    """Whether it is written out as single operations."""


def axes_from_end(axes: object, rank: int) -> tuple[int, ...] | None:
    """Return axes counted from the end and sorted; None if they are not plain numbers."""
    if isinstance(axes, int):
        axes = (axes,)
    if not isinstance(axes, list | tuple) or not all(isinstance(a, int) for a in axes):
        return None
    return tuple(sorted(axis if axis < 0 else axis - rank for axis in axes))


def find_handwritten_norm(graph: Graph, node: Node) -> Norm | None:
    """Return the norm whose last operation is this node, or None."""
    if node.op not in ("mul", "div") or len(node.inputs) < 2:
        return None
    for value in node.inputs:
        for statistic in node.inputs:
            if value == statistic or (node.op == "div" and node.operands[0].node != value):
                continue
            norm = _match_division(graph, node, value=value, statistic=statistic)
            if norm is not None:
                return norm
    return None


def _match_division(graph: Graph, node: Node, *, value: int, statistic: int) -> Norm | None:
    small = statistic
    while graph[small].op in ("expand", "expand_as", "broadcast_to") and graph[small].inputs:
        small = graph[small].inputs[0]
    if not graph[value].shape or graph[small].size * 2 > max(graph[value].size, 1):
        return None
    magnitude = _find_magnitude(graph, small)
    if magnitude is None:
        return None
    trail, is_centered = trace_to_base(graph, value)
    reduced = {i for start in magnitude.reduced for i in trace_to_base(graph, start)[0]}
    if not any(i in reduced for i in trail):
        return None
    source = graph[trail[-1]]
    is_centered |= magnitude.is_centered
    kind = "layer" if is_centered else "l2" if magnitude.is_length else "rms"
    if magnitude.absolute:
        is_mean = magnitude.absolute == "l1" and not magnitude.is_length  # sum(|x|) / dim
        kind = "mean_abs" if is_mean else magnitude.absolute
    if kind == "l2" and magnitude.axes:  # sqrt(dim) times a unit vector is an RMS norm
        root = math.sqrt(math.prod(source.shape[axis] for axis in magnitude.axes))
        numbers = [o.value for i in trail for o in graph[i].operands if o.kind == "number"]
        if any(n and abs(n - root) < 1e-3 * root for n in numbers):
            kind = "rms"
    rank = len(source.shape)
    if rank > 2 and magnitude.axes == tuple(range(-rank, -1)):
        kind = "batch"  # one mean per feature
    return Norm(
        node.index, source.index, kind, node.path, magnitude.eps, magnitude.axes, by_hand=True
    )


@dataclass(frozen=True, slots=True)
class _Magnitude:
    """A statistic that measures how large a tensor is."""

    reduced: frozenset[int]
    """Nodes that are reduced."""
    is_centered: bool
    """Whether a mean is subtracted, as in a variance."""
    is_length: bool
    """Whether it is a length and not the root of a mean."""
    eps: float | None
    axes: tuple[int, ...] | None
    absolute: str = ""
    """Kind of the norm if it measures absolute values: l1, mean_abs, max_abs or max."""


def _find_magnitude(graph: Graph, index: int) -> _Magnitude | None:
    """Return the magnitude that a node computes, or None.

    The walk goes back over light operations to the tensors that are reduced.
    """
    reduced: set[int] = set()
    eps: float | None = None
    axes: tuple[int, ...] | None = None
    has_root = is_centered = False
    absolute = ""
    ops: set[str] = set()
    visited, waiting = {index}, [index]
    while waiting and len(visited) < MAX_STATISTIC_NODES:
        node = graph[waiting.pop()]
        if node.op in NAMED_NORMS or (node.op in NONLINEAR and node.op != "exp"):
            return None
        ops.add(node.op)
        has_root |= node.op in ROOTS or _is_square_root(node)
        if node.op in ("add", "clamp", "clamp_min", "maximum", "max"):
            eps = _find_eps(node) or eps
        if _is_reduction(graph, node):
            reduced.update(node.inputs)
            axes = axes or _reduced_axes(graph, node)
            is_centered |= node.op in VARIANCES
            absolute = absolute or _absolute_kind(graph, node)
            has_root |= any(graph[i].op == "abs" for i in node.inputs)
            is_centered |= any(trace_to_base(graph, i)[1] for i in node.inputs)
            continue
        if is_mixing(node.op):
            return None
        is_centered |= node.op in ("sub", "rsub") and len(node.inputs) == 2  # E[x^2] - E[x]^2
        for i in node.inputs:
            if i not in visited:
                visited.add(i)
                waiting.append(i)
    if not (has_root and reduced):
        return None
    is_length = not ops & (VARIANCES | {"mean", "nanmean", "div", "mul"})
    return _Magnitude(frozenset(reduced), is_centered, is_length, eps, axes, absolute)


def absolute_order(order: object) -> str:
    """Return the kind of norm that an order of a vector norm means; empty for the Euclidean."""
    if not isinstance(order, int | float):
        return ""
    return {1: "l1", math.inf: "max_abs"}.get(order, "")


def _absolute_kind(graph: Graph, node: Node) -> str:
    """Return the kind of norm if a reduction takes absolute values, not squares; else empty."""
    order = node.detail.get("order")
    if order is not None:
        return absolute_order(order)
    trail = [graph[i] for start in node.inputs for i in trace_to_base(graph, start)[0][:-1]]
    has_abs = any(step.op == "abs" for step in trail)
    if node.op in ("amax", "max"):
        return "max_abs" if has_abs else "max"
    if not has_abs or any(_is_power(step) for step in trail):
        return ""
    return {"mean": "mean_abs", "nanmean": "mean_abs", "sum": "l1", "nansum": "l1"}.get(node.op, "")


def _is_power(node: Node) -> bool:
    """Return whether a node is a power of its input, such as x * x."""
    return node.op in ("pow", "square", "float_power") or (
        node.op == "mul" and len({(o.kind, o.node) for o in node.operands}) == 1
    )


def _reduced_axes(graph: Graph, node: Node) -> tuple[int, ...] | None:
    rank = len(graph[node.inputs[0]].shape)
    if node.op not in REDUCTIONS:
        return None
    if "dim" not in node.detail and node.size == 1:
        return tuple(range(-rank, 0))
    return axes_from_end(node.detail.get("dim"), rank)


def _find_eps(node: Node) -> float | None:
    values = [o.value for o in node.operands if o.kind in ("number", "constant")]
    small = [abs(v) for v in values if v is not None and 0 < abs(v) < 0.1]
    return small[0] if small else node.detail.get("min")


def _is_square_root(node: Node) -> bool:
    if node.op != "pow":
        return False
    exponents = [o.value for o in node.operands if o.kind == "number"]
    return any(abs(e or 0) == 0.5 for e in exponents)


def _is_reduction(graph: Graph, node: Node) -> bool:
    """Return whether a node reduces a larger tensor and reads no weights."""
    if not node.inputs:
        return False
    largest = max(graph[i].size for i in node.inputs)
    if node.size * 2 > largest:
        return False
    if node.op in REDUCTIONS:
        return True
    return (node.op in PRODUCT or node.op == "linear") and not any(
        o.kind == "weight" or (o.kind == "node" and graph[o.node].learned) for o in node.operands
    )


def trace_to_base(graph: Graph, index: int) -> tuple[list[int], bool]:
    """Walk back over squares, casts, factors and centering.

    Returns:
        The nodes of the walk, and whether a mean is subtracted on it.
    """
    trail, is_centered = [index], False
    for _ in range(MAX_BASE_STEPS):
        node = graph[index]
        if node.op in ("pow", "square", "abs", "float_power", "mul") and len(node.inputs) == 1:
            index = node.inputs[0]
        elif node.op in PASS_THROUGH or (
            node.op == "div" and graph.parent_through_scale(index) is not None
        ):
            if len(node.inputs) != 1:
                break
            index = node.inputs[0]
        elif (
            node.op in ("sub", "rsub", "add")
            and len(node.inputs) == 2
            and _is_centering(graph, node)
        ):
            large = max(node.inputs, key=lambda i: graph[i].size)
            index, is_centered = large, True
        elif (
            node.op in ("pow", "mul") and len(node.inputs) == 2 and node.inputs[0] == node.inputs[1]
        ):
            index = node.inputs[0]
        else:
            break
        trail.append(index)
    return trail, is_centered


def _is_centering(graph: Graph, node: Node) -> bool:
    """Return whether a node is `x - m`, where m is a mean without weights."""
    small = min(node.inputs, key=lambda i: graph[i].size)
    if node.op == "add" and not any(graph[i].op == "neg" for i in node.inputs):
        return False
    for _ in range(MAX_MEAN_STEPS):
        if _is_reduction(graph, graph[small]):
            return True
        if graph[small].op == "getitem" and len(graph[small].inputs) == 1:  # mean[..., None]
            small = graph[small].inputs[0]
            continue
        step = graph.parent_through_scale(small)
        if step is None:
            return False
        small = step[0]
    return False
