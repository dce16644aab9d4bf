"""Coordinates: boxes, lines and panels of one diagram, in pixels, y downwards, trunk at x = 0."""

from collections import defaultdict
from dataclasses import dataclass

from addnorm.report.diagram.blocks import Block
from addnorm.report.diagram.graph import ROUND, Graph, Node
from addnorm.report.diagram.grid import Cell, place
from addnorm.report.diagram.routing import Route, routes
from addnorm.report.diagram.text_metrics import shorten, width

FONT, SMALL, TINY = 14.0, 11.5, 10.5
GAP, TRACK, LANE, MARGIN, PORT = 26.0, 10.0, 16.0, 22.0, 20.0
TRUNK = 46.0
"""Half the width that the trunk always has."""
PANEL = 16.0
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
    branches: bool
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

    block: Block
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    panels: tuple[Panel, ...]
    left: float
    right: float
    top: float
    bottom: float


def layout(block: Block) -> Diagram:
    """Lay out the block of one wiring."""
    cells = place(block.graph)
    ways = routes(block.graph, cells)
    sizes = {id: _size(node) for id, node in block.graph.items()}
    across = _Across(block.graph, cells, ways, sizes)
    upward = _Upward(block.graph, cells, ways, sizes, across)
    boxes = {
        id: Box(node, across.columns[cells[id].column], upward.rows[cells[id].row], *sizes[id])
        for id, node in block.graph.items()
    }
    lines = tuple(_line(way, boxes, across, upward) for way in ways)
    panels = _panels(block, boxes, lines)
    left = min([panel.left for panel in panels] + [box.x - box.w / 2 for box in boxes.values()])
    right = max([panel.right for panel in panels] + [box.x + box.w / 2 for box in boxes.values()])
    top = min(box.top for box in boxes.values())
    bottom = max(box.bottom for box in boxes.values())
    return Diagram(block, tuple(boxes.values()), lines, panels, left, right, top, bottom)


def _size(node: Node) -> tuple[float, float]:
    if node.kind in ROUND:
        return 22.0, 22.0
    if node.kind in ("input", "output"):
        return max(24.0, width(node.label, FONT)), 20.0
    if node.kind == "scale":
        return width(node.label, SMALL) + 16, 20.0
    least = {"sublayer": 132.0, "norm": 92.0}.get(node.kind, 92.0)
    w = max(least, width(node.label, FONT) + 24, width(note(node), TINY) + 20)
    tall = 46.0 if node.kind == "sublayer" else 30.0
    return w, max(tall, 46.0) if node.note else tall


def note(node: Node) -> str:
    """The second line of a box, cut where it is long."""
    return shorten(node.note, TINY, 132.0)


def side_width(node: Node) -> float:
    """Room to the right of a sub-layer for what it reads besides its branch."""
    return width(node.side, SMALL) + 34 if node.side else 0.0


class _Across:
    """Where columns and lanes stand."""

    def __init__(
        self,
        graph: Graph,
        cells: dict[int, Cell],
        ways: list[Route],
        sizes: dict[int, tuple[float, float]],
    ) -> None:
        half: dict[int, float] = defaultdict(float)
        self.extra: dict[int, float] = defaultdict(float)
        for id, cell in cells.items():
            half[cell.column] = max(half[cell.column], sizes[id][0] / 2)
            self.extra[cell.column] = max(self.extra[cell.column], side_width(graph[id]))
        half[0] = max(half[0], TRUNK)
        lanes: dict[int, int] = defaultdict(int)
        for way in ways:
            if way.lane:
                lanes[way.lane[0]] = max(lanes[way.lane[0]], way.lane[1] + 1)
        self._half = half
        self.columns = {0: 0.0}
        for column in range(1, max(half) + 1):
            room = half[column - 1] + self.extra[column - 1] + half[column]
            self.columns[column] = self.columns[column - 1] + room + self._space(lanes[column])
        for column in range(-1, min(half) - 1, -1):
            room = half[column] + half[column + 1] + self.extra[column]
            self.columns[column] = self.columns[column + 1] - room - self._space(lanes[column + 1])

    def lane(self, space: int, number: int) -> float:
        """Where a lane stands: the first next to its column."""
        if space <= 0:
            return self.columns[space] - self._half[space] - LANE * (number + 1)
        if space in self.columns:
            return self.columns[space] - self._half[space] - LANE * (number + 1)
        column = space - 1
        return self.columns[column] + self._half[column] + self.extra[column] + LANE * (number + 1)

    def _space(self, lanes: int) -> float:
        return MARGIN + LANE * lanes


class _Upward:
    """Where rows stand, and the tracks in the gaps between them."""

    def __init__(
        self,
        graph: Graph,
        cells: dict[int, Cell],
        ways: list[Route],
        sizes: dict[int, tuple[float, float]],
        across: _Across,
    ) -> None:
        self._tracks: dict[int, list[list[tuple[float, float, int]]]] = defaultdict(list)
        self._number: dict[tuple[int, int, int], int] = {}
        for way in ways:
            self._assign(way, cells, across, graph[way.target].kind in ROUND)
        height: dict[int, float] = defaultdict(float)
        segment = {cell.row: graph[id].layer for id, cell in cells.items()}
        for id, cell in cells.items():
            height[cell.row] = max(height[cell.row], sizes[id][1])
        self.rows: dict[int, float] = {}
        self._below: dict[int, float] = {}
        y = 0.0
        for row in range(max(height) + 1):
            self.rows[row] = y - height[row] / 2
            y -= height[row]
            y -= GAP + TRACK * max(len(self._tracks[row]) - 1, 0)
            if segment[row] != segment.get(row + 1, -2):
                y -= PANEL + (PANEL if segment[row] >= 0 else 0)
            self._below[row + 1] = y

    def track(self, row: int, way: Route) -> float:
        """Height of the line of a way that runs across above a row, right below the next."""
        tracks = len(self._tracks[row]) - 1
        number = tracks - self._number[row, way.source, way.target]
        return self._below[row + 1] + GAP / 2 + TRACK * number

    def _assign(self, way: Route, cells: dict[int, Cell], across: _Across, circle: bool) -> None:
        start, end = cells[way.source], cells[way.target]
        a, b = across.columns[start.column], across.columns[end.column] + PORT * way.port
        if way.way == "cross":
            self._put(start.row, way, a, b)
        if way.way == "over":
            self._put(end.row - 1, way, a, b)
        if way.way == "lane" and way.lane:
            middle = across.lane(*way.lane)
            self._put(start.row, way, a, middle)
            if not circle:
                self._put(end.row - 1, way, middle, b)

    def _put(self, row: int, way: Route, a: float, b: float) -> None:
        low, high = min(a, b) - 6, max(a, b) + 6
        tracks = self._tracks[row]
        free = (
            number
            for number, track in enumerate(tracks)
            if all(h < low or high < x or owner == way.source for x, h, owner in track)
        )
        if (number := next(free, len(tracks))) == len(tracks):
            tracks.append([])
        tracks[number].append((low, high, way.source))
        self._number[row, way.source, way.target] = number


def _line(way: Route, boxes: dict[int, Box], across: _Across, upward: _Upward) -> Line:
    a, b = boxes[way.source], boxes[way.target]
    start, port = (a.x, a.top), b.x + PORT * way.port
    rows = {y: row for row, y in upward.rows.items()}
    if way.way == "straight":
        return Line(way, (start, (b.x, b.bottom)), False)
    if way.way == "rise":
        side = b.w / 2 if a.x > b.x else -b.w / 2
        return Line(way, (start, (a.x, b.y), (b.x + side, b.y)), False)
    if way.way == "over":
        z = upward.track(rows[b.y] - 1, way)
        return Line(way, (start, (a.x, z), (port, z), (port, b.bottom)), False)
    y = upward.track(rows[a.y], way)
    if way.way == "cross":
        return Line(way, (start, (a.x, y), (port, y), (port, b.bottom)), True)
    assert way.lane is not None
    x = across.lane(*way.lane)
    if b.node.kind in ROUND:
        side = b.w / 2 if x > b.x else -b.w / 2
        return Line(way, (start, (a.x, y), (x, y), (x, b.y), (b.x + side, b.y)), True)
    z = upward.track(rows[b.y] - 1, way)
    return Line(way, (start, (a.x, y), (x, y), (x, z), (port, z), (port, b.bottom)), True)


def _panels(block: Block, boxes: dict[int, Box], lines: tuple[Line, ...]) -> tuple[Panel, ...]:
    xs = [-TRUNK, TRUNK] + [x for line in lines for x, _ in line.points]
    xs += [box.x - box.w / 2 for box in boxes.values()]
    xs += [box.x + box.w / 2 + side_width(box.node) for box in boxes.values()]
    panels = []
    for layer, repeats in enumerate(block.repeats):
        inside = [box for box in boxes.values() if box.node.layer == layer]
        if inside:
            top = min(box.top for box in inside) - PANEL
            bottom = max(box.bottom for box in inside) + PANEL + GAP / 2
            panels.append(Panel(min(xs) - PANEL, top, max(xs) + PANEL, bottom, repeats))
    return tuple(panels)
