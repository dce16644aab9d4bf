"""Projection shortcuts: one matrix or convolution on the shortcut, several on the branch.

    y = relu(conv2(relu(conv1(x)))) + conv1x1(x)     # a ResNet block that changes the width

The shortcut has exactly one projection and no activation or slice. The branch has an activation
and at least two operations that mix. This rejects `W y + U x` in a recurrent cell, LoRA and
additive attention.

Either operand of the addition may be the shortcut. `_shortcut_nodes` walks back from it, past one
projection. The newest node that it shares with the ancestors of the other operand is the fork:

    model code            nodes of the graph
    h = a(x).relu()       1 linear(0), 2 relu(1)
    y = b(h)              3 linear(2)
    y = y + p(x)          4 linear(0), 5 add(3, 4)

    find_projection(graph, 3, other=4)
    ProjectedAdd(fork=0, shortcut=4, branch=3, path={0, 1, 2, 3})
"""

from dataclasses import dataclass
from heapq import heappop, heappush

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import CONVOLUTION, NONLINEAR, POOLING, SLICES, is_mixing

MAX_PROJECTION_NODES = 40
"""Maximum number of nodes of a projection with its norm."""


@dataclass(frozen=True, slots=True)
class ProjectedAdd:
    """Operands of an addition whose shortcut is a projection."""

    fork: int
    shortcut: int
    branch: int
    path: frozenset[int]


def find_projection(graph: Graph, one: int, *, other: int) -> ProjectedAdd | None:
    """Match `one + other` where one operand is a projection shortcut of the other's fork."""
    for shortcut, branch in ((one, other), (other, one)):
        near = _shortcut_nodes(graph, shortcut)
        behind = graph.ancestors(branch, min(near)) if near else set()
        fork = max(near & behind, default=shortcut)
        if fork == shortcut:
            continue
        path = frozenset(graph.nodes_between(fork, branch))
        shortcut_ops = [graph[i].op for i in graph.nodes_between(fork, shortcut) if i != fork]
        branch_ops = [graph[i].op for i in path if i != fork]
        if (
            sum(map(_is_projection, shortcut_ops)) == 1
            and not any(op in NONLINEAR or op in SLICES for op in shortcut_ops)
            and any(op in NONLINEAR for op in branch_ops)
            and sum(map(is_mixing, branch_ops)) >= 2
        ):
            return ProjectedAdd(fork, shortcut, branch, path)
    return None


def _is_projection(op: str) -> bool:
    return is_mixing(op) and op not in POOLING


def _shortcut_nodes(graph: Graph, end: int) -> set[int]:
    """Return the nodes that a projection shortcut ending at `end` may contain.

    The search visits the newest nodes first and stops at an activation, a slice or a second
    projection. The result is empty if no node is a matrix or a convolution.
    """
    visited: set[int] = set()
    waiting, projections_after = [-end], {end: 0}  # a max-heap of node indices
    has_projection = False
    while waiting and len(visited) < MAX_PROJECTION_NODES:
        index = -heappop(waiting)
        node = graph[index]
        visited.add(index)
        is_projection = _is_projection(node.op)
        if (
            node.op in NONLINEAR
            or node.op in SLICES
            or (is_projection and projections_after[index])
        ):
            continue
        if is_projection and node.op not in CONVOLUTION | {"linear", "addmm"}:
            continue
        has_projection |= is_projection
        for earlier in node.inputs:
            if earlier not in projections_after:
                projections_after[earlier] = projections_after[index] + is_projection
                heappush(waiting, -earlier)
    return visited if has_projection else set()
