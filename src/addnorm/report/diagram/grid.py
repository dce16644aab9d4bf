"""Where nodes stand: the stream as a straight trunk, branches to its right, other streams left."""

from dataclasses import dataclass
from itertools import groupby

from addnorm.report.diagram.graph import ROUND_KINDS, Graph, Node
from addnorm.report.diagram.simplify import consumers


@dataclass(frozen=True)
class GridCell:
    """Place of a node in the grid; rows count upwards, the trunk is column 0."""

    column: int
    row: int


Score = tuple[int, int, int, int]


def assign_cells(graph: Graph) -> dict[int, GridCell]:
    """A cell for every node."""
    trunk = _find_trunk(graph)
    right = _find_branches(graph, trunk)
    cells: dict[int, GridCell] = {}
    taken: set[GridCell] = set()
    lone: set[int] = set()  # rows that belong to a circle, with lines arriving from its sides
    base, segment = 0, -1
    for node in _placement_order(graph, trunk):
        if node.layer != segment:
            base, segment = _top_row(cells) + 1, node.layer
        row = max([base, *(cells[edge.source].row + 1 for edge in node.inputs)])
        side = 0 if node.id in trunk else 1 if node.id in right else -1
        used = {cell.row for cell in taken}
        column = _choose_column(node, side, cells)
        while row in lone or (
            row in used if node.kind in ROUND_KINDS else side == 0 and GridCell(0, row) in taken
        ):
            row += 1
        while GridCell(column, row) in taken:
            column += side
        cells[node.id] = GridCell(column, row)
        taken.add(cells[node.id])
        if node.kind in ROUND_KINDS:
            lone.add(row)
    return cells


def _placement_order(graph: Graph, trunk: set[int]) -> list[Node]:
    """Verb after verb, in each what stands beside the trunk first: circles there come lower."""
    found: list[Node] = []
    for _, verb in groupby(graph.values(), key=lambda node: (node.layer, node.phase)):
        waiting = {node.id: node for node in verb}
        while waiting:
            ready = [
                node
                for node in waiting.values()
                if not any(edge.source in waiting for edge in node.inputs)
            ]
            found.append(min(ready, key=lambda node: (node.id in trunk, node.id)))
            del waiting[found[-1].id]
    return found


def _top_row(cells: dict[int, GridCell]) -> int:
    return max((cell.row for cell in cells.values()), default=-1)


def _choose_column(node: Node, side: int, cells: dict[int, GridCell]) -> int:
    """As what it comes from, where that stands on the same side."""
    if side == 0:
        return 0
    near = [cells[e.source].column for e in node.inputs if cells[e.source].column * side > 0]
    return near[0] if near else side


def _find_trunk(graph: Graph) -> set[int]:
    """The path of the stream: past the sub-layers, along the first entry of the state."""
    best: dict[int, tuple[Score, tuple[int, ...]]] = {}
    for node in graph.values():
        ways = [best[edge.source] for edge in node.inputs if edge.source in best]
        if node.kind != "input" and not ways:
            continue
        (passed, stream, plain, length), path = max(ways, default=((0, 0, 0, 0), ()))
        score = (
            passed - (node.kind == "sublayer"),
            stream + (node.slot == 0) - (node.slot is not None and node.slot > 0),
            plain - (node.kind in ("mul", "scale")),
            length - 1,
        )
        best[node.id] = (score, (*path, node.id))
    end = next(node.id for node in graph.values() if node.kind == "output" and node.layer == -2)
    return set(best[end][1])


def _find_branches(graph: Graph, trunk: set[int]) -> set[int]:
    """Sub-layers, what only they read, and what is made of nothing else."""
    readers = consumers(graph)
    right = {n.id for n in graph.values() if n.kind == "sublayer" and n.id not in trunk}
    for node in reversed(graph.values()):
        if node.id not in trunk and readers[node.id] and right.issuperset(readers[node.id]):
            right.add(node.id)
    for node in graph.values():
        sources = {edge.source for edge in node.inputs}
        joined = sources & right and sources <= right | trunk
        if joined and node.id not in trunk and not node.slot:
            right.add(node.id)
    return right
