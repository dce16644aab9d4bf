"""Step 8, for terminals: render a diagram with box-drawing characters.

The layout in pixels is mapped to characters: x is divided by the width of a character, and every
y at which a box is centered or a line turns becomes a row. B2T is rendered as

                  y
               [Norm]
          ╭──────(+)────────────────╮
          │       │          [Feed-forward]
    6 x   │       ├─────────────────╯
          │    [Norm]
          │      (+)────────────────╮
          │       │         [Self-attention]
          ╰───────┼─────────────────╯
                  x
"""

from collections import defaultdict
from itertools import pairwise

from addnorm.report.diagram.layout import Box, Diagram

Strokes = dict[tuple[int, int], dict[int, int]]
"""By cell (row, column) and source of a line: the sides of the cell that the line touches."""

CHARACTER_WIDTH_PIXELS = 7.5
"""Pixels of the layout for each character."""
UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
STROKE_CHARACTERS = {
    UP: "│", DOWN: "│", UP | DOWN: "│", LEFT: "─", RIGHT: "─", LEFT | RIGHT: "─",
    DOWN | RIGHT: "╭", DOWN | LEFT: "╮", UP | RIGHT: "╰", UP | LEFT: "╯",
    UP | DOWN | RIGHT: "├", UP | DOWN | LEFT: "┤",
    DOWN | LEFT | RIGHT: "┬", UP | LEFT | RIGHT: "┴", UP | DOWN | LEFT | RIGHT: "┼",
}  # fmt: skip


def render_text(diagram: Diagram) -> str:
    """Return a diagram as lines of text, with the input at the bottom."""
    rows = _assign_rows(diagram)
    strokes: Strokes = defaultdict(lambda: defaultdict(int))
    for line in diagram.lines:
        corners = [(rows[round(y)], _to_column(diagram, x)) for x, y in line.points]
        for start, end in pairwise(corners):
            _draw_stroke(strokes, line.route.source, start, end)
    height = max(rows.values()) + 1
    cells = {cell: _stroke_character(list(sides.values())) for cell, sides in strokes.items()}
    for box in diagram.boxes:
        label = _label(box)
        left = _to_column(diagram, box.x) - len(label) // 2
        cells |= {(rows[round(box.y)], left + i): char for i, char in enumerate(label)}
    for panel in diagram.panels:
        if panel.repeats > 1:
            badge = f"{panel.repeats} x "
            panel_rows = [row for y, row in rows.items() if panel.top <= y <= panel.bottom]
            left = _to_column(diagram, panel.left) - len(badge)
            middle = (min(panel_rows) + max(panel_rows)) // 2
            cells |= {(middle, left + i): char for i, char in enumerate(badge)}
    first = min(column for _, column in cells)
    last = max(column for _, column in cells)
    return "\n".join(
        "".join(cells.get((row, column), " ") for column in range(first, last + 1)).rstrip()
        for row in range(height)
    )


def _assign_rows(diagram: Diagram) -> dict[int, int]:
    """Return the row of each y of a box or corner; the ends of lines at a box get the box's row."""
    heights = {round(y) for line in diagram.lines for _, y in line.points}
    heights |= {round(box.y) for box in diagram.boxes}
    box_y = {
        height: round(box.y)
        for height in sorted(heights)
        for box in diagram.boxes
        if round(box.top) <= height <= round(box.bottom) and _touches_line(diagram, box, height)
    }
    distinct = sorted({box_y.get(height, height) for height in heights})
    order = {height: row for row, height in enumerate(distinct)}
    return {height: order[box_y.get(height, height)] for height in heights}


def _touches_line(diagram: Diagram, box: Box, height: int) -> bool:
    """Return whether a line starts or ends at this height of the box."""
    ends = (end for line in diagram.lines for end in (line.points[0], line.points[-1]))
    return round(box.y) == height or any(
        round(y) == height and abs(x - box.x) <= box.w / 2 for x, y in ends
    )


def _to_column(diagram: Diagram, x: float) -> int:
    return round((x - diagram.left) / CHARACTER_WIDTH_PIXELS)


def _label(box: Box) -> str:
    symbols = {"add": "(+)", "mul": "(x)"}
    label = symbols.get(box.node.kind, box.node.label)
    return label if box.node.kind in ("add", "mul", "input", "output") else f"[{label}]"


def _stroke_character(sides: list[int]) -> str:
    """Return the character of a cell; where lines only cross, the vertical one is drawn."""
    if len(sides) > 1 and all(each in (UP | DOWN, LEFT | RIGHT) for each in sides):
        return STROKE_CHARACTERS[max(sides, key=lambda each: each == UP | DOWN)]
    joined = 0
    for each in sides:
        joined |= each
    return STROKE_CHARACTERS[joined]


def _draw_stroke(
    strokes: Strokes, source: int, start: tuple[int, int], end: tuple[int, int]
) -> None:
    """Mark the cells of a straight segment."""
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
