"""Step 6: choose a route for each edge, such that no two edges overlap.

There are five kinds of routes, from a source (bottom) to a target (top):

    straight      rise              over              cross             lane

    target        target <--+       target            target            target
      ^                     |         ^                 ^                 ^
      |                     |         +-----+           |                 +-----+
      |                     |               |           |               other   |
      |                     |               |           +-----+           +-----+
    source               source           source           source       source

    straight   up, in the column that both share
    rise       up the source's column, then horizontally into a side of the target (circles only)
    over       up the source's column, then horizontally below the target and into its bottom
    cross      horizontally above the source, then up the target's column
    lane       horizontally above the source, up a lane between two columns, and horizontally again

A route needs a free stretch of a column. `_Router` keeps the stretches that are taken and tries
the kinds in order of preference. A lane is the last resort and always exists, because lanes are
added as needed. Edges of the same source may share a stretch: they are drawn as one line that
splits.

Heights are counted in half rows: 2 r is row r, and 2 r + 1 is the gap above it. For B2T these are
among the routes:

    x -> Self-attention            cross
    x -> first +                   straight
    Self-attention -> first +      rise
    x -> second +                  lane (0, 0), the innermost lane left of column 0
"""

from collections import defaultdict
from dataclasses import dataclass

from addnorm.report.diagram.graph import ROUND_KINDS, Edge, Graph
from addnorm.report.diagram.grid import GridCell

Lane = tuple[int, int]
"""Index of a space between columns, and of the lane in it.

Space c is left of column c; the one after the last column is right of it. Lane 0 is next to the
column.
"""
Stretch = tuple[int, int, int]
"""Lower end, upper end, and the source whose edges use the stretch."""


@dataclass(frozen=True)
class Route:
    """The route of one edge; see the module docstring for the kinds."""

    source: int
    target: int
    edge: Edge
    kind: str
    lane: Lane | None = None
    port: int = 0
    """Where the edge enters the bottom of the target: 0 is the middle, -1 the first left of it."""


def route_edges(graph: Graph, cells: dict[int, GridCell]) -> list[Route]:
    """Return a route for each edge, ordered by source and target.

    Straight edges are routed first, then the others from short to long, so that long edges make way
    for short ones.
    """
    router = _Router(graph, cells)
    edges = [(node.id, edge) for node in graph.values() for edge in node.inputs]

    def routing_order(target_and_edge: tuple[int, Edge]) -> tuple[bool, int, int]:
        target, edge = target_and_edge
        start, end = cells[edge.source], cells[target]
        return start.column != end.column, end.row - start.row, target

    routes = [router.route(target, edge) for target, edge in sorted(edges, key=routing_order)]
    return sorted(routes, key=lambda route: (route.source, route.target))


class _Router:
    """Chooses routes one after the other and keeps the stretches that are taken."""

    def __init__(self, graph: Graph, cells: dict[int, GridCell]) -> None:
        self.graph, self.cells = graph, cells
        self._connected: set[tuple[int, int]] = set()
        self._columns: dict[int, list[Stretch]] = defaultdict(list)
        self._lanes: dict[int, list[list[Stretch]]] = defaultdict(list)
        for id, cell in cells.items():
            self._columns[cell.column].append((2 * cell.row, 2 * cell.row, id))

    def route(self, target: int, edge: Edge) -> Route:
        """Choose the route of one edge and reserve its stretches."""
        start, end = self.cells[edge.source], self.cells[target]
        low, high = 2 * start.row + 1, 2 * end.row - 1
        is_round = self.graph[target].kind in ROUND_KINDS
        # The second edge of x + x takes a lane, or it would be hidden by the first.
        is_repeated = (edge.source, target) in self._connected
        self._connected.add((edge.source, target))
        for kind, column, top in self._candidate_routes(target, start, end, is_round):
            if not is_repeated and self._reserve(column, low, top, edge.source):
                enters_bottom = kind in ("cross", "over") and not is_round
                port = self._find_port(target, edge) if enters_bottom else 0
                return Route(edge.source, target, edge, kind, port=port)
        lane = self._find_lane(start, end, low, high + is_round, edge.source)
        port = 0 if is_round else self._find_port(target, edge)
        return Route(edge.source, target, edge, "lane", lane, port)

    def _candidate_routes(
        self, target: int, source_cell: GridCell, target_cell: GridCell, is_round: bool
    ) -> list[tuple[str, int, int]]:
        """Return kind, column and upper end of routes without a lane, the preferred one first."""
        high = 2 * target_cell.row - 1
        if source_cell.column == target_cell.column:
            return [("straight", source_cell.column, high)]
        # Edges towards the trunk rise in the column of the branch; edges away from it leave early.
        is_inward = source_cell.column > 0 or abs(target_cell.column) < abs(source_cell.column)
        cross, over = ("cross", target_cell.column, high), ("over", source_cell.column, high)
        if is_round:
            has_input_below = any(
                self.cells[edge.source].column == target_cell.column
                for edge in self.graph[target].inputs
            )
            rise = ("rise", source_cell.column, high + 1)
            return [rise] if has_input_below or is_inward else [cross, rise]
        return [over, cross] if is_inward else [cross, over]

    def _reserve(self, column: int, low: int, high: int, source: int) -> bool:
        """Reserve a stretch of a column; return False if another source uses a part of it."""
        for start, end, owner in self._columns[column]:
            if start <= high and low <= end and owner != source:
                return False
        self._columns[column].append((low, high, source))
        return True

    def _find_lane(
        self, source_cell: GridCell, target_cell: GridCell, low: int, high: int, source: int
    ) -> Lane:
        """Reserve the innermost free lane next to the target, on the side of the source.

        If both are in one column, the lane is on the side that faces away from the trunk.
        """
        column = target_cell.column
        if source_cell.column == column:
            space = column if column <= 0 else column + 1
        else:
            space = column if source_cell.column < column else column + 1
        lanes = self._lanes[space]
        for number, lane in enumerate(lanes):
            if all(end < low or high < start or owner == source for start, end, owner in lane):
                lane.append((low, high, source))
                return space, number
        lanes.append([(low, high, source)])
        return space, len(lanes) - 1

    def _find_port(self, target: int, edge: Edge) -> int:
        """Return 0 for the only input, or else the next port on the side of the source."""
        inputs = self.graph[target].inputs
        if len(inputs) == 1:
            return 0
        column = self.cells[target].column
        side = self._side(edge, column)
        same_side = [other for other in inputs if self._side(other, column) == side]
        return side * (same_side.index(edge) + 1)

    def _side(self, edge: Edge, column: int) -> int:
        start = self.cells[edge.source].column
        return -1 if start < column or start == column <= 0 else 1
