"""Shortcuts through one matrix or convolution, beside a branch of several."""

from heapq import heappop, heappush

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import CONVOLUTION, NONLINEAR, POOLING, SLICES, is_mixing

MAX_PROJECTION_NODES = 40
"""Nodes that a projection with its norm may have."""


def find_projection(graph: Graph, one: int, *, other: int) -> tuple[int, int, int, set[int]] | None:
    """Fork, shortcut, branch and the branch's way, where one side of a sum is a projection."""
    for shortcut, branch in ((one, other), (other, one)):
        near = _shortcut_nodes(graph, shortcut)
        behind = graph.ancestors(branch, min(near)) if near else set()
        fork = max(near & behind, default=shortcut)
        if fork == shortcut:
            continue
        way = graph.nodes_between(fork, branch)
        straight = [graph[i].op for i in graph.nodes_between(fork, shortcut) if i != fork]
        winding = [graph[i].op for i in way if i != fork]
        if (
            sum(map(_is_projection, straight)) == 1
            and not any(op in NONLINEAR or op in SLICES for op in straight)
            and any(op in NONLINEAR for op in winding)
            and sum(map(is_mixing, winding)) >= 2
        ):
            return fork, shortcut, branch, way
    return None


def _is_projection(op: str) -> bool:
    return is_mixing(op) and op not in POOLING


def _shortcut_nodes(graph: Graph, end: int) -> set[int]:
    """The nodes behind `end`, the nearest first, up to what no projection has: an activation, a
    slice, a second matrix. Empty if none of them is a matrix or a convolution."""
    seen: set[int] = set()
    waiting, crossed = [-end], {end: 0}
    found = False
    while waiting and len(seen) < MAX_PROJECTION_NODES:
        index = -heappop(waiting)
        node = graph[index]
        seen.add(index)
        heavy = _is_projection(node.op)
        if node.op in NONLINEAR or node.op in SLICES or (heavy and crossed[index]):
            continue
        if heavy and node.op not in CONVOLUTION | {"linear", "addmm"}:
            continue
        found |= heavy
        for earlier in node.inputs:
            if earlier not in crossed:
                crossed[earlier] = crossed[index] + heavy
                heappush(waiting, -earlier)
    return seen if found else set()
