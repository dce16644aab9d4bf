"""Step 7: convert grid cells and routes to coordinates.

Coordinates are in pixels, y points downwards as in SVG, and the trunk is at x = 0. There are two
passes:

    _ColumnLayout   x of columns and lanes, from the widths of boxes and the number of lanes
    _RowLayout      y of rows and tracks, from the heights of boxes and the number of tracks

A track is a horizontal line in the gap above a row. Horizontal segments of one gap share a track
unless they overlap; edges of the same source may overlap, because they are drawn as one line.

                 lane      column 0       column 1
    row 2         |       +--------+
                  |       |  Norm  |
                  |       +--------+
    gap above 1   +-----------|-------------+       track 1
                              +------+      |       track 0
    row 1                  source    |    source

The result is a `Diagram` of boxes, lines and panels, which `svg` and `text_art` render. The trunk
rises from the input at the bottom; the sub-layer stands in column 1, to its right:

    >>> from addnorm.report.diagram.blocks import build_block_diagram
    >>> diagram = compute_layout(build_block_diagram("post_ln", kinds=("ffn",)))
    >>> for box in diagram.boxes:
    ...     print(box.node.label, (box.x, box.y))
    x (0.0, -10.0)
    Feed-forward (134.0, -85.0)
    + (0.0, -145.0)
    Norm (0.0, -197.0)
    y (0.0, -280.0)
    >>> diagram.lines[0].points  # from x to the lower edge of the sub-layer
    ((0.0, -20.0), (0.0, -49.0), (134.0, -49.0), (134.0, -62.0))
"""

from collections import defaultdict
from dataclasses import dataclass

from addnorm.report.diagram.blocks import BlockDiagram
from addnorm.report.diagram.graph import ROUND_KINDS, Graph, Node
from addnorm.report.diagram.grid import GridCell, assign_cells
from addnorm.report.diagram.routing import Route, route_edges
from addnorm.report.diagram.text_metrics import shorten, text_width

FONT_SIZE, SMALL_FONT_SIZE, TINY_FONT_SIZE = 14.0, 11.5, 10.5
"""Font sizes of titles of boxes, of scales, and of notes, in pixels like all that follow."""
NOTE_LINE_HEIGHT = 12.0
ROW_GAP, TRACK_SPACING, LANE_SPACING, COLUMN_MARGIN, PORT_SPACING = 26.0, 10.0, 16.0, 22.0, 20.0
TRUNK_HALF_WIDTH = 46.0
"""Minimum of half the width of column 0."""
PANEL_PADDING = 16.0
"""Space between the edge of a panel and its contents."""


@dataclass(frozen=True)
class Box:
    """A node with its position and size."""

    node: Node
    x: float
    """Center."""
    y: float
    """Center."""
    w: float
    h: float

    @property
    def top(self) -> float:
        """y of the upper edge."""
        return self.y - self.h / 2

    @property
    def bottom(self) -> float:
        """y of the lower edge; y grows downwards."""
        return self.y + self.h / 2


@dataclass(frozen=True)
class Line:
    """An edge as a polyline from source to target."""

    route: Route
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Panel:
    """The background of a drawn layer."""

    left: float
    top: float
    right: float
    bottom: float
    repeats: int
    """Number of equal layers that the drawn layer stands for."""


@dataclass(frozen=True)
class Diagram:
    """The boxes, lines and panels of one wiring."""

    block: BlockDiagram
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    panels: tuple[Panel, ...]
    left: float
    right: float
    top: float
    bottom: float


def compute_layout(block: BlockDiagram) -> Diagram:
    """Return the layout of a block diagram."""
    cells = assign_cells(block.graph)
    routes = route_edges(block.graph, cells)
    sizes = {id: _size(node) for id, node in block.graph.items()}
    column_layout = _ColumnLayout(block.graph, cells, routes, sizes)
    row_layout = _RowLayout(block.graph, cells, routes, sizes, column_layout)
    boxes = {
        id: Box(
            node,
            column_layout.columns[cells[id].column],
            row_layout.rows[cells[id].row],
            *sizes[id],
        )
        for id, node in block.graph.items()
    }
    lines = tuple(_build_line(route, boxes, column_layout, row_layout) for route in routes)
    panels = _build_panels(block, boxes, lines)
    left = min([panel.left for panel in panels] + [box.x - box.w / 2 for box in boxes.values()])
    right = max([panel.right for panel in panels] + [box.x + box.w / 2 for box in boxes.values()])
    top = min(box.top for box in boxes.values())
    bottom = max(box.bottom for box in boxes.values())
    return Diagram(block, tuple(boxes.values()), lines, panels, left, right, top, bottom)


def _size(node: Node) -> tuple[float, float]:
    """Return width and height of a node."""
    if node.kind in ROUND_KINDS:
        return 22.0, 22.0
    if node.kind in ("input", "output"):
        return max(24.0, text_width(node.label, FONT_SIZE)), 20.0
    if node.kind == "scale":
        return text_width(node.label, SMALL_FONT_SIZE) + 16, 20.0
    w = max(
        132.0 if node.kind == "sublayer" else 92.0,
        text_width(node.label, FONT_SIZE) + 24,
        *(text_width(line, TINY_FONT_SIZE) + 20 for line in format_notes(node)),
    )
    more = NOTE_LINE_HEIGHT * max(0, len(format_notes(node)) - 1)
    return w, (46.0 if node.kind == "sublayer" or node.note else 30.0) + more


def format_notes(node: Node) -> list[str]:
    """Return the lines below the label of a box, each shortened to its width."""
    lines = node.note.split("; ") if node.note else []
    return [shorten(line, TINY_FONT_SIZE, 132.0) for line in lines]


def side_width(node: Node) -> float:
    """Return the space right of a sub-layer for the label of its other inputs."""
    return text_width(node.side, SMALL_FONT_SIZE) + 34 if node.side else 0.0


class _ColumnLayout:
    """x coordinates of columns and lanes."""

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
        for route in routes:
            if route.lane:
                space, number = route.lane
                lanes[space] = max(lanes[space], number + 1)
        self._half_widths = half
        self.columns = {0: 0.0}
        for column in range(1, max(half) + 1):
            distance = half[column - 1] + self.side_widths[column - 1] + half[column]
            distance += self._space_width(lanes[column])
            self.columns[column] = self.columns[column - 1] + distance
        for column in range(-1, min(half) - 1, -1):
            distance = half[column] + half[column + 1] + self.side_widths[column]
            distance += self._space_width(lanes[column + 1])
            self.columns[column] = self.columns[column + 1] - distance

    def lane_x(self, space: int, number: int) -> float:
        """Return x of a lane; lane 0 is next to the column right of its space."""
        if space in self.columns:
            return self.columns[space] - self._half_widths[space] - LANE_SPACING * (number + 1)
        column = space - 1  # the space right of the last column
        return (
            self.columns[column]
            + self._half_widths[column]
            + self.side_widths[column]
            + LANE_SPACING * (number + 1)
        )

    def _space_width(self, lanes: int) -> float:
        return COLUMN_MARGIN + LANE_SPACING * lanes


class _RowLayout:
    """y coordinates of rows, and of the tracks in the gaps between them."""

    def __init__(
        self,
        graph: Graph,
        cells: dict[int, GridCell],
        routes: list[Route],
        sizes: dict[int, tuple[float, float]],
        column_layout: _ColumnLayout,
    ) -> None:
        # For each row: the tracks in the gap above it, each a list of (left, right, source).
        self._tracks: dict[int, list[list[tuple[float, float, int]]]] = defaultdict(list)
        self._track_numbers: dict[tuple[int, int, int], int] = {}  # by row, source and target
        for route in routes:
            is_round = graph[route.target].kind in ROUND_KINDS
            self._assign_tracks(route, cells, column_layout, is_round)
        height: dict[int, float] = defaultdict(float)
        layer_of_row = {cell.row: graph[id].layer for id, cell in cells.items()}
        for id, cell in cells.items():
            height[cell.row] = max(height[cell.row], sizes[id][1])
        self.rows: dict[int, float] = {}
        self._row_bottoms: dict[int, float] = {}
        y = 0.0
        for row in range(max(height) + 1):
            self.rows[row] = y - height[row] / 2
            y -= height[row]
            y -= ROW_GAP + TRACK_SPACING * max(len(self._tracks[row]) - 1, 0)
            if layer_of_row[row] != layer_of_row.get(row + 1, -2):  # the edges of panels
                y -= PANEL_PADDING + (PANEL_PADDING if layer_of_row[row] >= 0 else 0)
            self._row_bottoms[row + 1] = y

    def track_y(self, row: int, route: Route) -> float:
        """Return y of the horizontal segment of a route in the gap above a row."""
        tracks = len(self._tracks[row]) - 1
        number = tracks - self._track_numbers[row, route.source, route.target]
        return self._row_bottoms[row + 1] + ROW_GAP / 2 + TRACK_SPACING * number

    def _assign_tracks(
        self, route: Route, cells: dict[int, GridCell], column_layout: _ColumnLayout, is_round: bool
    ) -> None:
        start, end = cells[route.source], cells[route.target]
        start_x = column_layout.columns[start.column]
        end_x = column_layout.columns[end.column] + PORT_SPACING * route.port
        if route.kind == "cross":
            self._add_to_track(start.row, route, start_x, end_x)
        if route.kind == "over":
            self._add_to_track(end.row - 1, route, start_x, end_x)
        if route.kind == "lane" and route.lane:
            lane_x = column_layout.lane_x(*route.lane)
            self._add_to_track(start.row, route, start_x, lane_x)
            if not is_round:  # a circle is entered from its side, in its own row
                self._add_to_track(end.row - 1, route, lane_x, end_x)

    def _add_to_track(self, row: int, route: Route, a: float, b: float) -> None:
        """Put the segment from a to b on the first track where it overlaps no other source."""
        low, high = min(a, b) - 6, max(a, b) + 6
        tracks = self._tracks[row]
        free = (
            number
            for number, track in enumerate(tracks)
            if all(
                right < low or high < left or owner == route.source for left, right, owner in track
            )
        )
        if (number := next(free, len(tracks))) == len(tracks):
            tracks.append([])
        tracks[number].append((low, high, route.source))
        self._track_numbers[row, route.source, route.target] = number


def _build_line(
    route: Route, boxes: dict[int, Box], column_layout: _ColumnLayout, row_layout: _RowLayout
) -> Line:
    """Return the corners of a route: from the top of the source to the target."""
    source, target = boxes[route.source], boxes[route.target]
    start, port = (source.x, source.top), target.x + PORT_SPACING * route.port
    row_of = {y: row for row, y in row_layout.rows.items()}
    if route.kind == "straight":
        return Line(route, (start, (target.x, target.bottom)))
    if route.kind == "rise":
        side = target.w / 2 if source.x > target.x else -target.w / 2
        return Line(route, (start, (source.x, target.y), (target.x + side, target.y)))
    if route.kind == "over":
        y = row_layout.track_y(row_of[target.y] - 1, route)
        return Line(route, (start, (source.x, y), (port, y), (port, target.bottom)))
    y = row_layout.track_y(row_of[source.y], route)
    if route.kind == "cross":
        return Line(route, (start, (source.x, y), (port, y), (port, target.bottom)))
    assert route.lane is not None
    x = column_layout.lane_x(*route.lane)
    to_lane = (start, (source.x, y), (x, y))
    if target.node.kind in ROUND_KINDS:
        side = target.w / 2 if x > target.x else -target.w / 2
        return Line(route, (*to_lane, (x, target.y), (target.x + side, target.y)))
    end_y = row_layout.track_y(row_of[target.y] - 1, route)
    return Line(route, (*to_lane, (x, end_y), (port, end_y), (port, target.bottom)))


def _build_panels(
    block: BlockDiagram, boxes: dict[int, Box], lines: tuple[Line, ...]
) -> tuple[Panel, ...]:
    """Return the panels of all drawn layers, all as wide as the whole diagram."""
    xs = [-TRUNK_HALF_WIDTH, TRUNK_HALF_WIDTH] + [x for line in lines for x, _ in line.points]
    xs += [box.x - box.w / 2 for box in boxes.values()]
    xs += [box.x + box.w / 2 + side_width(box.node) for box in boxes.values()]
    panels = []
    for layer, repeats in enumerate(block.repeats):
        layer_boxes = [box for box in boxes.values() if box.node.layer == layer]
        if layer_boxes:
            top = min(box.top for box in layer_boxes) - PANEL_PADDING
            bottom = max(box.bottom for box in layer_boxes) + PANEL_PADDING + ROW_GAP / 2
            panels.append(
                Panel(min(xs) - PANEL_PADDING, top, max(xs) + PANEL_PADDING, bottom, repeats)
            )
    return tuple(panels)
