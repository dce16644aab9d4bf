"""A block diagram in characters: the same boxes and lines, on the grid of a terminal."""

from collections import defaultdict
from itertools import pairwise

from addnorm.report.diagram.layout import Box, Diagram

Strokes = dict[tuple[int, int], dict[int, int]]  # cell -> source of a line -> its sides

CHARACTER_WIDTH_PIXELS = 7.5
"""Pixels of the drawing that one column of characters stands for."""
UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
STROKES = {
    UP: "│", DOWN: "│", UP | DOWN: "│", LEFT: "─", RIGHT: "─", LEFT | RIGHT: "─",
    DOWN | RIGHT: "╭", DOWN | LEFT: "╮", UP | RIGHT: "╰", UP | LEFT: "╯",
    UP | DOWN | RIGHT: "├", UP | DOWN | LEFT: "┤",
    DOWN | LEFT | RIGHT: "┬", UP | LEFT | RIGHT: "┴", UP | DOWN | LEFT | RIGHT: "┼",
}  # fmt: skip


def render_text(diagram: Diagram) -> str:
    """The diagram as lines of text, input at the bottom.

    A row is made for every height at which something stands or turns, so that nothing overlaps.
    """
    rows = _assign_rows(diagram)
    strokes: Strokes = defaultdict(lambda: defaultdict(int))
    for line in diagram.lines:
        corners = [(rows[round(y)], _to_column(diagram, x)) for x, y in line.points]
        for start, end in pairwise(corners):
            _draw_stroke(strokes, line.route.source, start, end)
    height = max(rows.values()) + 1
    cells = {place: _stroke_character(list(sides.values())) for place, sides in strokes.items()}
    for box in diagram.boxes:
        label = _label(box)
        left = _to_column(diagram, box.x) - len(label) // 2
        cells |= {(rows[round(box.y)], left + i): sign for i, sign in enumerate(label)}
    for panel in diagram.panels:
        if panel.repeats > 1:
            said = f"{panel.repeats} x "
            inside = [row for y, row in rows.items() if panel.top <= y <= panel.bottom]
            left = _to_column(diagram, panel.left) - len(said)
            middle = (min(inside) + max(inside)) // 2
            cells |= {(middle, left + i): sign for i, sign in enumerate(said)}
    first = min(column for _, column in cells)
    last = max(column for _, column in cells)
    return "\n".join(
        "".join(cells.get((row, column), " ") for column in range(first, last + 1)).rstrip()
        for row in range(height)
    )


def _assign_rows(diagram: Diagram) -> dict[int, int]:
    """The row of every height; the edges of a box are the row of its middle."""
    heights = {round(y) for line in diagram.lines for _, y in line.points}
    heights |= {round(box.y) for box in diagram.boxes}
    middle = {
        height: round(box.y)
        for height in sorted(heights)
        for box in diagram.boxes
        if round(box.top) <= height <= round(box.bottom) and _touches_line(diagram, box, height)
    }
    kept = sorted({middle.get(height, height) for height in heights})
    order = {height: row for row, height in enumerate(kept)}
    return {height: order[middle.get(height, height)] for height in heights}


def _touches_line(diagram: Diagram, box: Box, height: int) -> bool:
    """Whether that height is an end of a line at this box."""
    ends = (end for line in diagram.lines for end in (line.points[0], line.points[-1]))
    return round(box.y) == height or any(
        round(y) == height and abs(x - box.x) <= box.w / 2 for x, y in ends
    )


def _to_column(diagram: Diagram, x: float) -> int:
    return round((x - diagram.left) / CHARACTER_WIDTH_PIXELS)


def _label(box: Box) -> str:
    signs = {"add": "(+)", "mul": "(x)"}
    label = signs.get(box.node.kind, box.node.label)
    return label if box.node.kind in ("add", "mul", "input", "output") else f"[{label}]"


def _stroke_character(sides: list[int]) -> str:
    """The character of a cell; of lines that cross without touching the upright one is seen."""
    if len(sides) > 1 and all(each in (UP | DOWN, LEFT | RIGHT) for each in sides):
        return STROKES[max(sides, key=lambda each: each == UP | DOWN)]
    joined = 0
    for each in sides:
        joined |= each
    return STROKES[joined]


def _draw_stroke(
    strokes: Strokes, source: int, start: tuple[int, int], end: tuple[int, int]
) -> None:
    """A straight piece of a line, from cell to cell."""
    (row, column), (last_row, last_column) = start, end
    while (row, column) != (last_row, last_column):
        if column != last_column:
            step, out, back = (1, RIGHT, LEFT) if last_column > column else (-1, LEFT, RIGHT)
            following = row, column + step
        else:
            step, out, back = (1, DOWN, UP) if last_row > row else (-1, UP, DOWN)
            following = row + step, column
        strokes[row, column][source] |= out
        strokes[following][source] |= back
        row, column = following
