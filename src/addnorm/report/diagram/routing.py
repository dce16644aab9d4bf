"""Which way the lines go: up the columns, in lanes between them, across in the gaps of rows."""

from collections import defaultdict
from dataclasses import dataclass

from addnorm.report.diagram.graph import ROUND_KINDS, Edge, Graph
from addnorm.report.diagram.grid import GridCell

Lane = tuple[int, int]
"""The space left of a column, and the number of the lane in it, from the column outwards."""


@dataclass(frozen=True)
class Route:
    """How one edge runs.

    straight: up. rise: up the source's column, then across into a side of the target. over: the
    same, but into its bottom. cross: across right above the source, then up into the target.
    lane: across, up in a lane between columns, and across again.
    """

    source: int
    target: int
    edge: Edge
    kind: str
    lane: Lane | None = None
    port: int = 0
    """Which entry at the bottom of the target, counted from its middle."""


def route_edges(graph: Graph, cells: dict[int, GridCell]) -> list[Route]:
    """A way for every edge, short ones first, none on top of another."""
    router = _Router(graph, cells)
    edges = [(node.id, edge) for node in graph.values() for edge in node.inputs]

    def bent_and_long(pair: tuple[int, Edge]) -> tuple[bool, int, int]:
        here, there = cells[pair[1].source], cells[pair[0]]
        return here.column != there.column, there.row - here.row, pair[0]

    found = [router.route(target, edge) for target, edge in sorted(edges, key=bent_and_long)]
    return sorted(found, key=lambda route: (route.source, route.target))


class _Router:
    """Keeps what is taken; heights in half rows, 2 r for row r and 2 r + 1 for the gap above."""

    def __init__(self, graph: Graph, cells: dict[int, GridCell]) -> None:
        self.graph, self.cells = graph, cells
        self._connected: set[tuple[int, int]] = set()
        self._columns: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._lanes: dict[int, list[list[tuple[int, int, int]]]] = defaultdict(list)
        for id, cell in cells.items():
            self._columns[cell.column].append((2 * cell.row, 2 * cell.row, id))

    def route(self, target: int, edge: Edge) -> Route:
        """Choose a way and take it."""
        here, there = self.cells[edge.source], self.cells[target]
        low, high = 2 * here.row + 1, 2 * there.row - 1
        circle = self.graph[target].kind in ROUND_KINDS
        again = (edge.source, target) in self._connected  # x + x: a second line, to be seen as one
        self._connected.add((edge.source, target))
        for way, column, top in self._candidate_routes(target, here, there, circle):
            if not again and self._reserve(column, low, top, edge.source):
                port = (
                    self._find_port(target, edge) if way in ("cross", "over") and not circle else 0
                )
                return Route(edge.source, target, edge, way, port=port)
        lane = self._find_lane(here, there, low, high + circle, edge.source)
        port = 0 if circle else self._find_port(target, edge)
        return Route(edge.source, target, edge, "lane", lane, port)

    def _candidate_routes(
        self, target: int, source_cell: GridCell, target_cell: GridCell, is_round: bool
    ) -> list[tuple[str, int, int]]:
        """Ways without a lane, the best first: name, column, and how far up that must be free."""
        high = 2 * target_cell.row - 1
        if source_cell.column == target_cell.column:
            return [("straight", source_cell.column, high)]
        inward = source_cell.column > 0 or abs(target_cell.column) < abs(source_cell.column)
        cross, over = ("cross", target_cell.column, high), ("over", source_cell.column, high)
        if is_round:
            below = any(
                self.cells[edge.source].column == target_cell.column
                for edge in self.graph[target].inputs
            )
            rise = ("rise", source_cell.column, high + 1)
            return [rise] if below or inward else [cross, rise]
        return [over, cross] if inward else [cross, over]

    def _reserve(self, column: int, low: int, high: int, source: int) -> bool:
        """Take a stretch of a column if nothing of another source is in it."""
        for a, b, owner in self._columns[column]:
            if a <= high and low <= b and owner != source:
                return False
        self._columns[column].append((low, high, source))
        return True

    def _find_lane(
        self, source_cell: GridCell, target_cell: GridCell, low: int, high: int, source: int
    ) -> Lane:
        """The innermost free lane of the space next to the target, on the side of the source."""
        if source_cell.column == target_cell.column:
            space = target_cell.column if target_cell.column <= 0 else target_cell.column + 1
        else:
            space = (
                target_cell.column
                if source_cell.column < target_cell.column
                else target_cell.column + 1
            )
        lanes = self._lanes[space]
        for number, lane in enumerate(lanes):
            if all(b < low or high < a or owner == source for a, b, owner in lane):
                lane.append((low, high, source))
                return space, number
        lanes.append([(low, high, source)])
        return space, len(lanes) - 1

    def _find_port(self, target: int, edge: Edge) -> int:
        """The middle for a lone input, else out to the side from which it comes."""
        inputs = self.graph[target].inputs
        if len(inputs) == 1:
            return 0
        column = self.cells[target].column
        mine = self._side(edge, column)
        same = [other for other in inputs if self._side(other, column) == mine]
        return mine * (same.index(edge) + 1)

    def _side(self, edge: Edge, column: int) -> int:
        start = self.cells[edge.source].column
        return -1 if start < column or start == column <= 0 else 1
