"""Coordinates: boxes, lines and panels of one diagram, in pixels, y downwards, trunk at x = 0."""

from collections import defaultdict
from dataclasses import dataclass

from addnorm.report.diagram.blocks import BlockDiagram
from addnorm.report.diagram.graph import ROUND_KINDS, Graph, Node
from addnorm.report.diagram.grid import GridCell, assign_cells
from addnorm.report.diagram.routing import Route, route_edges
from addnorm.report.diagram.text_metrics import shorten, text_width

FONT_SIZE, SMALL_FONT_SIZE, TINY_FONT_SIZE = 14.0, 11.5, 10.5
ROW_GAP, TRACK_SPACING, LANE_SPACING, COLUMN_MARGIN, PORT_SPACING = 26.0, 10.0, 16.0, 22.0, 20.0
TRUNK_HALF_WIDTH = 46.0
"""Half the width that the trunk always has."""
PANEL_PADDING = 16.0
"""Space between a panel's edge and what is in it."""


@dataclass(frozen=True)
class Box:
    """A node with its place."""

    node: Node
    x: float
    y: float
    """Middle."""
    w: float
    h: float

    @property
    def top(self) -> float:
        """Upper edge."""
        return self.y - self.h / 2

    @property
    def bottom(self) -> float:
        """Lower edge."""
        return self.y + self.h / 2


@dataclass(frozen=True)
class Line:
    """An edge as corners from source to target."""

    route: Route
    points: tuple[tuple[float, float], ...]
    is_branch: bool
    """Whether it leaves another line of the same source, at its second corner."""


@dataclass(frozen=True)
class Panel:
    """A drawn layer, and how many it stands for."""

    left: float
    top: float
    right: float
    bottom: float
    repeats: int


@dataclass(frozen=True)
class Diagram:
    """One wiring, laid out."""

    block: BlockDiagram
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    panels: tuple[Panel, ...]
    left: float
    right: float
    top: float
    bottom: float


def compute_layout(block: BlockDiagram) -> Diagram:
    """Lay out the block of one wiring."""
    cells = assign_cells(block.graph)
    ways = route_edges(block.graph, cells)
    sizes = {id: _size(node) for id, node in block.graph.items()}
    across = _ColumnLayout(block.graph, cells, ways, sizes)
    upward = _RowLayout(block.graph, cells, ways, sizes, across)
    boxes = {
        id: Box(node, across.columns[cells[id].column], upward.rows[cells[id].row], *sizes[id])
        for id, node in block.graph.items()
    }
    lines = tuple(_build_line(way, boxes, across, upward) for way in ways)
    panels = _build_panels(block, boxes, lines)
    left = min([panel.left for panel in panels] + [box.x - box.w / 2 for box in boxes.values()])
    right = max([panel.right for panel in panels] + [box.x + box.w / 2 for box in boxes.values()])
    top = min(box.top for box in boxes.values())
    bottom = max(box.bottom for box in boxes.values())
    return Diagram(block, tuple(boxes.values()), lines, panels, left, right, top, bottom)


def _size(node: Node) -> tuple[float, float]:
    if node.kind in ROUND_KINDS:
        return 22.0, 22.0
    if node.kind in ("input", "output"):
        return max(24.0, text_width(node.label, FONT_SIZE)), 20.0
    if node.kind == "scale":
        return text_width(node.label, SMALL_FONT_SIZE) + 16, 20.0
    least = {"sublayer": 132.0, "norm": 92.0}.get(node.kind, 92.0)
    w = max(
        least,
        text_width(node.label, FONT_SIZE) + 24,
        text_width(format_note(node), TINY_FONT_SIZE) + 20,
    )
    tall = 46.0 if node.kind == "sublayer" else 30.0
    return w, max(tall, 46.0) if node.note else tall


def format_note(node: Node) -> str:
    """The second line of a box, cut where it is long."""
    return shorten(node.note, TINY_FONT_SIZE, 132.0)


def side_width(node: Node) -> float:
    """Room to the right of a sub-layer for what it reads besides its branch."""
    return text_width(node.side, SMALL_FONT_SIZE) + 34 if node.side else 0.0


class _ColumnLayout:
    """Where columns and lanes stand."""

    def __init__(
        self,
        graph: Graph,
        cells: dict[int, GridCell],
        routes: list[Route],
        sizes: dict[int, tuple[float, float]],
    ) -> None:
        half: dict[int, float] = defaultdict(float)
        self.side_widths: dict[int, float] = defaultdict(float)
        for id, cell in cells.items():
            half[cell.column] = max(half[cell.column], sizes[id][0] / 2)
            self.side_widths[cell.column] = max(
                self.side_widths[cell.column], side_width(graph[id])
            )
        half[0] = max(half[0], TRUNK_HALF_WIDTH)
        lanes: dict[int, int] = defaultdict(int)
        for way in routes:
            if way.lane:
                lanes[way.lane[0]] = max(lanes[way.lane[0]], way.lane[1] + 1)
        self._half_widths = half
        self.columns = {0: 0.0}
        for column in range(1, max(half) + 1):
            room = half[column - 1] + self.side_widths[column - 1] + half[column]
            self.columns[column] = (
                self.columns[column - 1] + room + self._space_width(lanes[column])
            )
        for column in range(-1, min(half) - 1, -1):
            room = half[column] + half[column + 1] + self.side_widths[column]
            self.columns[column] = (
                self.columns[column + 1] - room - self._space_width(lanes[column + 1])
            )

    def lane_x(self, space: int, number: int) -> float:
        """Where a lane stands: the first next to its column."""
        if space <= 0:
            return self.columns[space] - self._half_widths[space] - LANE_SPACING * (number + 1)
        if space in self.columns:
            return self.columns[space] - self._half_widths[space] - LANE_SPACING * (number + 1)
        column = space - 1
        return (
            self.columns[column]
            + self._half_widths[column]
            + self.side_widths[column]
            + LANE_SPACING * (number + 1)
        )

    def _space_width(self, lanes: int) -> float:
        return COLUMN_MARGIN + LANE_SPACING * lanes


class _RowLayout:
    """Where rows stand, and the tracks in the gaps between them."""

    def __init__(
        self,
        graph: Graph,
        cells: dict[int, GridCell],
        routes: list[Route],
        sizes: dict[int, tuple[float, float]],
        column_layout: _ColumnLayout,
    ) -> None:
        self._tracks: dict[int, list[list[tuple[float, float, int]]]] = defaultdict(list)
        self._track_numbers: dict[tuple[int, int, int], int] = {}
        for way in routes:
            self._assign_tracks(way, cells, column_layout, graph[way.target].kind in ROUND_KINDS)
        height: dict[int, float] = defaultdict(float)
        segment = {cell.row: graph[id].layer for id, cell in cells.items()}
        for id, cell in cells.items():
            height[cell.row] = max(height[cell.row], sizes[id][1])
        self.rows: dict[int, float] = {}
        self._row_bottoms: dict[int, float] = {}
        y = 0.0
        for row in range(max(height) + 1):
            self.rows[row] = y - height[row] / 2
            y -= height[row]
            y -= ROW_GAP + TRACK_SPACING * max(len(self._tracks[row]) - 1, 0)
            if segment[row] != segment.get(row + 1, -2):
                y -= PANEL_PADDING + (PANEL_PADDING if segment[row] >= 0 else 0)
            self._row_bottoms[row + 1] = y

    def track_y(self, row: int, route: Route) -> float:
        """Height of the line of a way that runs across above a row, right below the next."""
        tracks = len(self._tracks[row]) - 1
        number = tracks - self._track_numbers[row, route.source, route.target]
        return self._row_bottoms[row + 1] + ROW_GAP / 2 + TRACK_SPACING * number

    def _assign_tracks(
        self, route: Route, cells: dict[int, GridCell], column_layout: _ColumnLayout, is_round: bool
    ) -> None:
        start, end = cells[route.source], cells[route.target]
        a, b = (
            column_layout.columns[start.column],
            column_layout.columns[end.column] + PORT_SPACING * route.port,
        )
        if route.kind == "cross":
            self._add_to_track(start.row, route, a, b)
        if route.kind == "over":
            self._add_to_track(end.row - 1, route, a, b)
        if route.kind == "lane" and route.lane:
            middle = column_layout.lane_x(*route.lane)
            self._add_to_track(start.row, route, a, middle)
            if not is_round:
                self._add_to_track(end.row - 1, route, middle, b)

    def _add_to_track(self, row: int, route: Route, a: float, b: float) -> None:
        low, high = min(a, b) - 6, max(a, b) + 6
        tracks = self._tracks[row]
        free = (
            number
            for number, track in enumerate(tracks)
            if all(h < low or high < x or owner == route.source for x, h, owner in track)
        )
        if (number := next(free, len(tracks))) == len(tracks):
            tracks.append([])
        tracks[number].append((low, high, route.source))
        self._track_numbers[row, route.source, route.target] = number


def _build_line(
    route: Route, boxes: dict[int, Box], column_layout: _ColumnLayout, row_layout: _RowLayout
) -> Line:
    a, b = boxes[route.source], boxes[route.target]
    start, port = (a.x, a.top), b.x + PORT_SPACING * route.port
    rows = {y: row for row, y in row_layout.rows.items()}
    if route.kind == "straight":
        return Line(route, (start, (b.x, b.bottom)), False)
    if route.kind == "rise":
        side = b.w / 2 if a.x > b.x else -b.w / 2
        return Line(route, (start, (a.x, b.y), (b.x + side, b.y)), False)
    if route.kind == "over":
        z = row_layout.track_y(rows[b.y] - 1, route)
        return Line(route, (start, (a.x, z), (port, z), (port, b.bottom)), False)
    y = row_layout.track_y(rows[a.y], route)
    if route.kind == "cross":
        return Line(route, (start, (a.x, y), (port, y), (port, b.bottom)), True)
    assert route.lane is not None
    x = column_layout.lane_x(*route.lane)
    if b.node.kind in ROUND_KINDS:
        side = b.w / 2 if x > b.x else -b.w / 2
        return Line(route, (start, (a.x, y), (x, y), (x, b.y), (b.x + side, b.y)), True)
    z = row_layout.track_y(rows[b.y] - 1, route)
    return Line(route, (start, (a.x, y), (x, y), (x, z), (port, z), (port, b.bottom)), True)


def _build_panels(
    block: BlockDiagram, boxes: dict[int, Box], lines: tuple[Line, ...]
) -> tuple[Panel, ...]:
    xs = [-TRUNK_HALF_WIDTH, TRUNK_HALF_WIDTH] + [x for line in lines for x, _ in line.points]
    xs += [box.x - box.w / 2 for box in boxes.values()]
    xs += [box.x + box.w / 2 + side_width(box.node) for box in boxes.values()]
    panels = []
    for layer, repeats in enumerate(block.repeats):
        inside = [box for box in boxes.values() if box.node.layer == layer]
        if inside:
            top = min(box.top for box in inside) - PANEL_PADDING
            bottom = max(box.bottom for box in inside) + PANEL_PADDING + ROW_GAP / 2
            panels.append(
                Panel(min(xs) - PANEL_PADDING, top, max(xs) + PANEL_PADDING, bottom, repeats)
            )
    return tuple(panels)
