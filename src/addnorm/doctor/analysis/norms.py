"""Norms of a graph: named operations, opaque kernels, squashing norms, and norms written by hand.

F.layer_norm(x)                named                     kind "layer"
CustomKernel.apply(x)          opaque, by its behavior   kind "layer" or "rms"
tanh(alpha * x)                squashing                 kind "dyt"
x / x.norm(dim=-1)             by hand                   kind "l2" (handwritten_norms.py)
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from addnorm.doctor.analysis.handwritten_norms import (
    Norm,
    absolute_order,
    axes_from_end,
    find_handwritten_norm,
)
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node
from addnorm.doctor.graph.ops import ATTENTION, NAMED_NORMS, SLICES

__all__ = ["FEATURE_NORMS", "TITLES", "Norm", "find_gain_nodes", "find_norms", "is_query_key"]

TITLES = {
    "layer": "LayerNorm", "rms": "RMSNorm", "l2": "Unit norm", "batch": "BatchNorm",
    "seednorm": "SeeDNorm", "group": "GroupNorm", "instance": "InstanceNorm", "dyt": "DyT",
    "derf": "Derf",
    "mean_abs": "mean-absolute-value norm", "l1": "L1 norm", "max_abs": "max-absolute-value norm",
    "max": "max norm",
}  # fmt: skip

FEATURE_NORMS = ("layer", "rms", "seednorm", "l2", "l1", "mean_abs", "max_abs", "max")
"""Kinds whose statistics should cover the features of one token."""


def find_norms(graph: Graph) -> dict[int, Norm]:
    """Return every use of a norm, by the node of its result."""
    norms: dict[int, Norm] = {}
    for node in graph:
        if not node.active or not node.inputs:
            continue
        norm = (
            _find_named_norm(graph, node)
            or find_handwritten_norm(graph, node)
            or _find_squashing_norm(graph, node)
        )
        if norm is not None:
            norms[node.index] = _to_rms(graph, norm) if norm.kind == "l2" else norm
    for norm in list(norms.values()):
        centered = _find_late_centering(graph, norm) if norm.by_hand else None
        if centered is not None:
            del norms[norm.node]
            norms[centered] = replace(norm, node=centered, kind="layer")
    for norm in list(norms.values()):
        scaled = _find_dynamic_gain(graph, norm) if norm.kind == "rms" else None
        if scaled is not None:
            del norms[norm.node]
            norms[scaled] = replace(norm, node=scaled, kind="seednorm")
            for index in [i for i, each in norms.items() if i < scaled and each.kind == "dyt"]:
                if graph.reaches(norm.source, index) and graph.reaches(index, scaled):
                    del norms[index]  # the tanh of its gain
    return norms


def _find_dynamic_gain(graph: Graph, norm: Norm) -> int | None:
    """Return the node of `n(x) * (alpha * tanh(x . beta) + gamma)`: a gain of the raw token."""
    for user in graph[norm.node].users:
        node = graph[user]
        if node.op != "mul" or len(node.inputs) != 2:
            continue
        other = next(i for i in node.inputs if i != norm.node)
        if not graph.reaches(norm.source, other):
            continue
        path = graph.nodes_between(norm.source, other)
        bounds = {i for i in path if graph[i].op in ("tanh", "sigmoid")}
        is_bounded = not graph.has_path_avoiding(norm.source, other, blocked=bounds)
        if bounds and is_bounded and not graph.has_mixing(path, exclude=norm.source):
            return user
    return None


def _find_late_centering(graph: Graph, norm: Norm) -> int | None:
    """Return the node of `x * scale - mean * scale`, a layer norm that centers last."""
    for user in graph[norm.node].users:
        node = graph[user]
        if node.op not in ("sub", "add") or len(node.inputs) != 2:
            continue
        other = next(i for i in node.inputs if i != norm.node)
        if graph[other].size * 2 <= node.size and graph.reaches(norm.source, other):
            path = graph.nodes_between(norm.source, other)
            if not graph.has_mixing(path, exclude=norm.source):
                return user
    return None


def _to_rms(graph: Graph, norm: Norm) -> Norm:
    """Return an L2 norm as an RMS norm if its result is multiplied by sqrt(dim)."""
    if not norm.axes or not graph[norm.source].shape:
        return norm
    width = math.prod(graph[norm.source].shape[axis] for axis in norm.axes)
    for index in graph.forward_reach(norm.node):
        step = graph.parent_through_scale(index)
        scale = step[1] if step else None
        value = scale.value if scale is not None and scale.kind == "constant" else None
        if value is not None and abs(value - math.sqrt(width)) < 1e-3 * math.sqrt(width):
            return replace(norm, kind="rms")
    return norm


def _find_named_norm(graph: Graph, node: Node) -> Norm | None:
    if node.op not in NAMED_NORMS:
        return None
    source = node.inputs[0]
    weights = tuple(o.name for o in node.operands if o.kind == "weight" and o.name)
    learned = any(o.kind == "node" and graph[o.node].learned for o in node.operands)
    gain = bool(weights) or learned or node.op.startswith("hidden")
    kind = absolute_order(node.detail.get("order")) or NAMED_NORMS[node.op]
    return Norm(
        node.index, source, kind, node.path, node.detail.get("eps"),
        _named_axes(graph, node), gain, weights,
    )  # fmt: skip


def _named_axes(graph: Graph, node: Node) -> tuple[int, ...] | None:
    rank = len(graph[node.inputs[0]].shape)
    if node.op in ("layer_norm", "native_layer_norm", "rms_norm"):
        shape = node.detail.get("shape")
        count = len(shape) if isinstance(shape, list | tuple) else 1
        return tuple(range(-count, 0))
    if node.op == "batch_norm":
        return tuple(axis - rank for axis in range(rank) if axis != 1)
    if node.op == "normalize":
        return axes_from_end(node.detail.get("dim", 1), rank)
    if node.op.startswith("hidden"):
        return (-1,)
    return None


def _find_squashing_norm(graph: Graph, node: Node) -> Norm | None:
    """Return DyT or Derf: a tanh or erf of the input times a learned scalar."""
    kinds = {"tanh": "dyt", "erf": "derf"}
    if node.op not in kinds or len(node.inputs) != 1:
        return None
    inner = graph[node.inputs[0]]
    for _ in range(3):
        if inner.op == "add" and len(inner.inputs) == 1:
            inner = graph[inner.inputs[0]]
    step = graph.parent_through_scale(inner.index)
    if step is None or step[1] is None or step[1].kind != "weight" or step[1].size != 1:
        return None
    return Norm(node.index, step[0], kinds[node.op], node.path)


def find_gain_nodes(graph: Graph, norm: Norm) -> set[int]:
    """Return the nodes that multiply the result of a norm by its gain, outside its operation."""
    if norm.gain:
        return set()
    gains: set[int] = set()
    for index in graph.forward_reach(norm.node):
        node = graph[index]
        if node.op == "mul" and len(node.inputs) == 1:
            step = graph.parent_through_scale(index)
            if step and step[1] and step[1].kind == "weight":
                gains.add(index)
    return gains


def find_coefficient_norms(
    graph: Graph, norms: Mapping[int, Norm], *, first: Collection[int], start: int
) -> set[int]:
    """Return the norms among the first after a node that only weigh what another one reads.

    In `n2(softmax(w * n1(x)) * x)`, both norms read `x`, and `n2` reads it around `n1` as well:
    `n1` belongs to the coefficients of a mixture of streams. In `n2(n1(x))` it does not.
    """
    return {
        index
        for index in first
        for other in first
        if index not in (other, norms[other].source)
        and graph.reaches(index, norms[other].source)
        and graph.has_path_avoiding(start, norms[other].source, blocked={index})
    }


def is_query_key(graph: Graph, norm: Norm) -> bool:
    """Return whether a norm normalizes queries or keys.

    Then an attention product reads its result, with at most rotary positions between.
    """
    reached = graph.forward_reach(norm.node, extra_ops=SLICES | {"cat"})
    products = ATTENTION - {"multi_head_attention_forward"}  # which projects queries and keys
    if any(graph[i].op in products for i in reached):
        return True
    rotated = [i for i in reached if _is_rotary(graph, reached, index=i)]
    products |= {"matmul", "bmm"}
    return any(graph[i].op in products for start in rotated for i in graph.forward_reach(start))


def _is_rotary(graph: Graph, reached: set[int], *, index: int) -> bool:
    """Return whether a node is `q * cos + rotate(q) * sin`."""
    node = graph[index]
    is_rotation = all(i in reached or graph[i].op in ("mul", "cat", "neg") for i in node.inputs)
    return node.op == "add" and len(node.inputs) == 2 and is_rotation
