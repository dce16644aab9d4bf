"""Step 5: assign each node a cell of a grid.

Rows count upwards, so that the input is at the bottom. Column 0 is the trunk: the path of the
residual stream from input to output. Branches (sub-layers, what only they read, and what is
computed from them) are in columns 1, 2, ...; other streams are in columns -1, -2, .... For one
layer of B2T:

    row    column 0    column 1
    7      y
    6      Norm
    5      +
    4                  Feed-forward
    3      Norm
    2      +
    1                  Self-attention
    0      x

Nodes are placed one after the other, each in the first row above all of its inputs that is free. A
circle has its row to itself, because edges arrive horizontally from both of its sides.
"""

from dataclasses import dataclass
from itertools import groupby

from addnorm.report.diagram.graph import ROUND_KINDS, Graph, Node
from addnorm.report.diagram.simplify import consumers


@dataclass(frozen=True)
class GridCell:
    """Position of a node in the grid."""

    column: int
    row: int


Score = tuple[int, int, int, int]
"""Preference of a path to be the trunk; compared lexicographically, larger is better."""


def assign_cells(graph: Graph) -> dict[int, GridCell]:
    """Return the cell of each node by id."""
    trunk = _find_trunk(graph)
    branches = _find_branches(graph, trunk)
    cells: dict[int, GridCell] = {}
    taken: set[GridCell] = set()
    circle_rows: set[int] = set()
    first_row, layer = 0, -1  # of the layer that is being placed
    for node in _placement_order(graph, trunk):
        if node.layer != layer:
            # Layers do not share rows: each is drawn on a panel of its own.
            first_row, layer = _top_row(cells) + 1, node.layer
        row = max([first_row, *(cells[edge.source].row + 1 for edge in node.inputs)])
        side = 0 if node.id in trunk else 1 if node.id in branches else -1
        column = _choose_column(node, side, cells)
        used_rows = {cell.row for cell in taken}
        is_circle = node.kind in ROUND_KINDS
        while row in circle_rows or (
            row in used_rows if is_circle else side == 0 and GridCell(0, row) in taken
        ):
            row += 1
        while GridCell(column, row) in taken:
            column += side
        cells[node.id] = GridCell(column, row)
        taken.add(cells[node.id])
        if is_circle:
            circle_rows.add(row)
    return cells


def _placement_order(graph: Graph, trunk: set[int]) -> list[Node]:
    """Return the nodes phase by phase, within a phase those beside the trunk first.

    Circles beside the trunk then get lower rows than those on the trunk that read them.
    """
    order: list[Node] = []
    for _, phase in groupby(graph.values(), key=lambda node: (node.layer, node.phase)):
        waiting = {node.id: node for node in phase}
        while waiting:
            ready = [
                node
                for node in waiting.values()
                if not any(edge.source in waiting for edge in node.inputs)
            ]
            order.append(min(ready, key=lambda node: (node.id in trunk, node.id)))
            del waiting[order[-1].id]
    return order


def _top_row(cells: dict[int, GridCell]) -> int:
    return max((cell.row for cell in cells.values()), default=-1)


def _choose_column(node: Node, side: int, cells: dict[int, GridCell]) -> int:
    """Return the column of the first input on the same side, or the one next to the trunk."""
    if side == 0:
        return 0
    columns = [cells[e.source].column for e in node.inputs if cells[e.source].column * side > 0]
    return columns[0] if columns else side


def _find_trunk(graph: Graph) -> set[int]:
    """Return the best path from an input to the output, by dynamic programming over the graph.

    A path is better if it passes fewer sub-layers, then if it follows the first entry of the state
    rather than others, then if it passes fewer multiplications and scales, then if it is shorter.
    """
    best: dict[int, tuple[Score, tuple[int, ...]]] = {}
    for node in graph.values():
        paths = [best[edge.source] for edge in node.inputs if edge.source in best]
        if node.kind != "input" and not paths:
            continue
        (sublayers, stream, scales, length), path = max(paths, default=((0, 0, 0, 0), ()))
        score = (
            sublayers - (node.kind == "sublayer"),
            stream + (node.slot == 0) - (node.slot is not None and node.slot > 0),
            scales - (node.kind in ("mul", "scale")),
            length - 1,
        )
        best[node.id] = (score, (*path, node.id))
    end = next(node.id for node in graph.values() if node.kind == "output" and node.layer == -2)
    return set(best[end][1])


def _find_branches(graph: Graph, trunk: set[int]) -> set[int]:
    """Return the sub-layers, the nodes that only branches read, and those made from branches.

    A node that makes another entry of the state is a stream of its own and not part of a branch.
    """
    readers = consumers(graph)
    branches = {n.id for n in graph.values() if n.kind == "sublayer" and n.id not in trunk}
    for node in reversed(graph.values()):
        if node.id not in trunk and readers[node.id] and branches.issuperset(readers[node.id]):
            branches.add(node.id)
    for node in graph.values():
        sources = {edge.source for edge in node.inputs}
        is_made_from_branches = sources & branches and sources <= branches | trunk
        if is_made_from_branches and node.id not in trunk and not node.slot:
            branches.add(node.id)
    return branches
