"""Norms written out by hand, in any spelling: something divided by the size of itself."""

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
"""Nodes of a statistic that are looked at."""


@dataclass(frozen=True, slots=True)
class Norm:
    """One use of a norm."""

    node: int
    """The normalized value."""
    source: int
    """What is normalized."""
    kind: str
    """layer, rms, l2, batch, group, instance, dyt or derf."""
    path: str
    eps: float | None = None
    axes: tuple[int, ...] | None = None
    """Axes of the source that the statistics run over, from the end; None if not known."""
    gain: bool = False
    """Whether its own gain is part of the operation."""
    weights: tuple[str, ...] = ()
    """Names of the weights that the operation itself takes."""
    by_hand: bool = False


def axes_from_end(axes: object, rank: int) -> tuple[int, ...] | None:
    """Axes counted from the end, sorted; None if they are not plain numbers."""
    if isinstance(axes, int):
        axes = (axes,)
    if not isinstance(axes, list | tuple) or not all(isinstance(a, int) for a in axes):
        return None
    return tuple(sorted(axis if axis < 0 else axis - rank for axis in axes))


def find_handwritten_norm(graph: Graph, node: Node) -> Norm | None:
    """The norm that ends at a node, if one does: something divided by the size of itself."""
    if node.op not in ("mul", "div") or len(node.inputs) < 2:
        return None
    for value in node.inputs:
        for statistic in node.inputs:
            if value == statistic or (node.op == "div" and node.operands[0].node != value):
                continue
            found = _match_division(graph, node, value=value, statistic=statistic)
            if found is not None:
                return found
    return None


def _match_division(graph: Graph, node: Node, *, value: int, statistic: int) -> Norm | None:
    small = statistic
    while graph[small].op in ("expand", "expand_as", "broadcast_to") and graph[small].inputs:
        small = graph[small].inputs[0]
    whole = graph[value].size
    if not graph[value].shape or graph[small].size * 2 > max(whole, 1):
        return None
    size = _find_magnitude(graph, small)
    if size is None:
        return None
    trail, minus = _trace_to_base(graph, value)
    roots = {i for start in size.roots for i in _trace_to_base(graph, start)[0]}
    shared = next((i for i in trail if i in roots), None)
    if shared is None:
        return None
    kind = "layer" if minus or size.is_centered else "l2" if size.is_length else "rms"
    if kind == "l2" and size.axes:
        width = math.prod(graph[trail[-1]].shape[axis] for axis in size.axes)
        numbers = [o.value for i in trail for o in graph[i].operands if o.kind == "number"]
        if any(n and abs(n - math.sqrt(width)) < 1e-3 * math.sqrt(width) for n in numbers):
            kind = "rms"
    rank = len(graph[trail[-1]].shape)
    if rank > 2 and size.axes == tuple(range(-rank, -1)):
        kind = "batch"  # one mean for each feature
    return Norm(
        node.index, trail[-1], kind, node.path, size.eps, size.axes, by_hand=True
    )  # fmt: skip


@dataclass(slots=True)
class _Magnitude:
    """A statistic that measures how large something is."""

    roots: set[int]
    is_centered: bool = False
    is_length: bool = False
    """A length, not a root of a mean."""
    eps: float | None = None
    axes: tuple[int, ...] | None = None


def _find_magnitude(graph: Graph, index: int) -> _Magnitude | None:
    """The statistic at a node, walked back by light operations to what was reduced."""
    size = _Magnitude(set())
    rooted = reduced = False
    ops: set[str] = set()
    seen, waiting = {index}, [index]
    while waiting and len(seen) < MAX_STATISTIC_NODES:
        node = graph[waiting.pop()]
        if node.op in NAMED_NORMS or (node.op in NONLINEAR and node.op != "exp"):
            return None
        ops.add(node.op)
        rooted |= node.op in ROOTS or _is_square_root(node)
        if node.op in ("add", "clamp", "clamp_min", "maximum", "max"):
            size.eps = _find_eps(node) or size.eps
        if _is_reduction(graph, node):
            reduced = True
            size.roots.update(node.inputs)
            size.axes = size.axes or _reduced_axes(graph, node)
            size.is_centered |= node.op in ("var", "std", "var_mean", "std_mean")
            rooted |= any(graph[i].op == "abs" for i in node.inputs)
            for i in node.inputs:
                size.is_centered |= _trace_to_base(graph, i)[1]
            continue
        if is_mixing(node.op):
            return None
        size.is_centered |= node.op in ("sub", "rsub") and len(node.inputs) == 2  # E[x^2] - E[x]^2
        for i in node.inputs:
            if i not in seen:
                seen.add(i)
                waiting.append(i)
    if not (rooted and reduced and size.roots):
        return None
    size.is_length = not ops & {
        "mean",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "div",
        "mul",
        "nanmean",
    }
    return size


def _reduced_axes(graph: Graph, node: Node) -> tuple[int, ...] | None:
    rank = len(graph[node.inputs[0]].shape)
    if node.op not in REDUCTIONS:
        return None
    if "dim" not in node.detail and node.size == 1:
        return tuple(range(-rank, 0))
    return axes_from_end(node.detail.get("dim"), rank)


def _find_eps(node: Node) -> float | None:
    found = [o.value for o in node.operands if o.kind in ("number", "constant")]
    small = [abs(v) for v in found if v is not None and 0 < abs(v) < 0.1]
    return small[0] if small else node.detail.get("min")


def _is_square_root(node: Node) -> bool:
    if node.op != "pow":
        return False
    exponents = [o.value for o in node.operands if o.kind == "number"]
    return any(abs(e or 0) == 0.5 for e in exponents)


def _is_reduction(graph: Graph, node: Node) -> bool:
    """Whether a node is a statistic of something larger, with no weights in it."""
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


def _trace_to_base(graph: Graph, index: int) -> tuple[list[int], bool]:
    """Back over squares, casts, gains and centring; and whether a mean was taken away."""
    trail, minus = [index], False
    for _ in range(12):
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
            index, minus = large, True
        elif (
            node.op in ("pow", "mul") and len(node.inputs) == 2 and node.inputs[0] == node.inputs[1]
        ):
            index = node.inputs[0]
        else:
            break
        trail.append(index)
    return trail, minus


def _is_centering(graph: Graph, node: Node) -> bool:
    """x - m, where m is a plain mean of something as large as x."""
    small = min(node.inputs, key=lambda i: graph[i].size)
    if node.op == "add" and not any(graph[i].op == "neg" for i in node.inputs):
        return False
    for _ in range(6):
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
