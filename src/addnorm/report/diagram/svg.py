"""Step 8: render diagrams as SVG.

Diagrams stand side by side, each in a slot as wide as its boxes or its title. A slot contains:

    title
    <g transform>    panels, then lines, then boxes; shifted, so that all inputs are on one line
    formula          wrapped to the width of the slot

A box becomes a rectangle with its label, an add a circle with a plus, and a line a path whose
corners are rounded:

    >>> from addnorm.report.diagram.blocks import build_block_diagram
    >>> from addnorm.report.diagram.layout import compute_layout
    >>> diagram = compute_layout(build_block_diagram("post_ln", kinds=("ffn",)))
    >>> [(box.node.label, box.x, box.y) for box in diagram.boxes if box.node.kind == "add"]
    [('+', 0.0, -145.0)]
    >>> lines = render_svg([diagram]).splitlines()
    >>> print(*[line for line in lines if "circle" in line])
    <circle cx="0" cy="-145" r="11" fill="#ffffff" stroke="#475066" stroke-width="1.3"/>

The SVG is standalone and accessible (title and description), and the same diagrams always give the
same bytes.
"""

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape

from addnorm.report.diagram.graph import ROUND_KINDS
from addnorm.report.diagram.label_text import MINUS, TIMES
from addnorm.report.diagram.layout import (
    FONT_SIZE,
    NOTE_LINE_HEIGHT,
    SMALL_FONT_SIZE,
    TINY_FONT_SIZE,
    Box,
    Diagram,
    Line,
    Panel,
    format_notes,
    side_width,
)
from addnorm.report.diagram.text_metrics import text_width, wrap
from addnorm.report.theme import FONT_FAMILY, THEMES, Theme

TITLE_SIZE = 17.0
DIAGRAM_GAP, PAGE_MARGIN, BADGE_WIDTH, FORMULA_LINE_HEIGHT = 34.0, 28.0, 44.0, 18.0
MIN_DIAGRAM_WIDTH = 250.0
"""Minimum width of a diagram, for its formula."""
CORNER_RADIUS = 9.0
SUBLAYER_COLORS = {"Self-attention": "self", "Cross-attention": "cross", "Feed-forward": "ffn"}
"""Keys of `Theme.fills` by the label of a sub-layer; all others use "other"."""
Point = tuple[float, float]


def render_svg(diagrams: Sequence[Diagram], *, theme: str = "light") -> str:
    """Return diagrams side by side with aligned inputs, each with its title and formula."""
    colors = THEMES[theme]
    slots = [_slot_width(diagram) for diagram in diagrams]
    height = max(d.bottom - d.top for d in diagrams)
    formulas = [
        wrap(diagram.block.formula, SMALL_FONT_SIZE + 1, slot - _badge_width(diagram) + PAGE_MARGIN)
        for diagram, slot in zip(diagrams, slots, strict=True)
    ]
    top = PAGE_MARGIN + TITLE_SIZE + 24
    baseline = top + height
    total_h = baseline + 26 + FORMULA_LINE_HEIGHT * max(map(len, formulas)) + PAGE_MARGIN - 8
    total_w = 2 * PAGE_MARGIN + sum(slots) + DIAGRAM_GAP * (len(slots) - 1)
    parts = _render_head(diagrams, total_w, total_h, colors)
    x = PAGE_MARGIN
    for diagram, slot, formula in zip(diagrams, slots, formulas, strict=True):
        parts += _render_diagram(diagram, x, slot, baseline, formula, colors)
        x += slot + DIAGRAM_GAP
    return "\n".join([*parts, "</svg>", ""])


def _slot_width(diagram: Diagram) -> float:
    title = text_width(diagram.block.title, TITLE_SIZE, bold=True)
    return max(MIN_DIAGRAM_WIDTH, diagram.right - diagram.left, title) + _badge_width(diagram)


def _badge_width(diagram: Diagram) -> float:
    """Return the space left of a diagram for the number of layers."""
    return BADGE_WIDTH if any(panel.repeats > 1 for panel in diagram.panels) else 0.0


def _render_head(diagrams: Sequence[Diagram], w: float, h: float, theme: Theme) -> list[str]:
    names = ", ".join(d.block.title for d in diagrams)
    description = "; ".join(f"{d.block.title}: {d.block.formula}" for d in diagrams)
    width, height = _number(w), _number(h)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="title desc" '
        f'font-family="{FONT_FAMILY}" font-size="{_number(FONT_SIZE)}" fill="{theme.ink}">',
        f'<title id="title">{escape(f"Block diagrams: {names}")}</title>',
        f'<desc id="desc">{escape(description)}</desc>',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0 0.6 L8 4 L0 7.4 L1.6 4 Z" fill="{theme.line}"/></marker></defs>',
        _element("rect", width=w, height=h, rx="10", fill=theme.paper),
    ]


def _render_diagram(
    diagram: Diagram, x: float, slot: float, baseline: float, formula: list[str], theme: Theme
) -> list[str]:
    middle = x + (slot + _badge_width(diagram)) / 2
    shift = middle - (diagram.left + diagram.right) / 2
    title = _element(
        "text", escape(diagram.block.title), x=middle, y=PAGE_MARGIN + TITLE_SIZE - 3,
        font_size=TITLE_SIZE, font_weight="600", text_anchor="middle",
    )  # fmt: skip
    parts = [title]
    parts.append(f'<g transform="translate({_point((shift, baseline - diagram.bottom))})">')
    for panel in diagram.panels:
        parts += _render_panel(panel, theme)
    parts += [_render_line(line, theme) for line in diagram.lines]
    parts += [part for line in diagram.lines for part in _render_minus(line, theme)]
    parts += [part for box in diagram.boxes for part in _render_box(box, theme)]
    parts.append("</g>")
    for number, text in enumerate(formula):
        y = baseline + 26 + FORMULA_LINE_HEIGHT * number
        parts.append(
            _element(
                "text",
                _render_subscripts(text),
                x=middle,
                y=y,
                text_anchor="middle",
                font_size=SMALL_FONT_SIZE + 1,
                fill=theme.quiet,
            )
        )
    return parts


def _render_subscripts(text: str) -> str:
    """Escape a formula and lower its subscripts, such as that of N_final."""

    def lower(match: re.Match[str]) -> str:
        base, subscript = match[0].split("_", 1)
        small = _element("tspan", subscript.strip("{}"), dy="3", font_size=TINY_FONT_SIZE - 1)
        return f'{base}{small}<tspan dy="-3">&#8203;</tspan>'  # an empty span would not move up

    letter, word = r"[^\W\d_]_(?:\{[^}]*\}|\w+)", r"[^\W\d_]+_\w{1,2}(?!\w)"
    return re.sub(rf"(?<!\w)(?:{letter}|{word})", lower, escape(text))


def _render_panel(panel: Panel, theme: Theme) -> list[str]:
    parts = [
        _element(
            "rect",
            x=panel.left,
            y=panel.top,
            width=panel.right - panel.left,
            height=panel.bottom - panel.top,
            rx="12",
            fill=theme.panel,
            stroke=theme.panel_edge,
        )
    ]
    if panel.repeats > 1:
        y = (panel.top + panel.bottom) / 2 + 5
        badge = f"{panel.repeats} {TIMES}"
        parts.append(
            _element("text", badge, x=panel.left - 10, y=y, text_anchor="end", fill=theme.quiet)
        )
    return parts


def _render_line(line: Line, theme: Theme) -> str:
    width = 3.2 if line.route.edge.wide else 1.5
    return _element(
        "path", d=_path(line.points), fill="none", stroke=theme.line, stroke_width=width,
        marker_end="url(#arrow)",
    )  # fmt: skip


def _path(points: Sequence[Point]) -> str:
    """Return the path of a polyline with rounded corners."""
    commands = [f"M{_point(points[0])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        r = min(CORNER_RADIUS, _distance(before, corner) / 2, _distance(corner, after) / 2)
        commands.append(f"L{_point(_move_toward(corner, before, r))}")
        commands.append(f"Q{_point(corner)} {_point(_move_toward(corner, after, r))}")
    return " ".join([*commands, f"L{_point(points[-1])}"])


def _distance(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])  # lines are horizontal or vertical


def _move_toward(a: Point, b: Point, r: float) -> Point:
    distance = _distance(a, b) or 1.0
    return a[0] + (b[0] - a[0]) * r / distance, a[1] + (b[1] - a[1]) * r / distance


def _render_minus(line: Line, theme: Theme) -> list[str]:
    """Return a minus sign next to the end of a line whose value is subtracted."""
    if not line.route.edge.minus:
        return []
    (before_x, _), (x, y) = line.points[-2:]
    is_horizontal = before_x != x
    position = (x - 10 if before_x < x else x + 10, y - 9) if is_horizontal else (x + 9, y + 8)
    return [_render_text(MINUS, *position, FONT_SIZE, theme.ink)]


def _render_box(box: Box, theme: Theme) -> list[str]:
    node = box.node
    if node.kind in ("input", "output"):
        return [_render_text(node.label, box.x, box.y, FONT_SIZE, theme.ink, italic=True)]
    if node.kind in ROUND_KINDS:
        return _render_circle(box, theme)
    key = node.kind
    if key == "sublayer":
        key = SUBLAYER_COLORS.get(node.label, "other")
    if key == "scale" and node.learned:
        key = "learned"
    fill, edge = theme.fills[key]
    parts = [
        _element(
            "rect",
            x=box.x - box.w / 2,
            y=box.top,
            width=box.w,
            height=box.h,
            rx=box.h / 2 if node.kind == "scale" else 8.0,
            fill=fill,
            stroke=edge,
            stroke_width="1.3",
        )
    ]
    size = SMALL_FONT_SIZE if node.kind == "scale" else FONT_SIZE
    notes = format_notes(node)
    half = NOTE_LINE_HEIGHT / 2 * max(0, len(notes) - 1)
    shift = 7.0 + half if notes else 0.0
    parts.append(_render_text(node.label, box.x, box.y - shift, size, theme.ink))
    for number, line in enumerate(notes):
        y = box.y + 10 - half + NOTE_LINE_HEIGHT * number
        parts.append(_render_text(line, box.x, y, TINY_FONT_SIZE, theme.quiet))
    return parts + _render_side_input(box, theme)


def _render_circle(box: Box, theme: Theme) -> list[str]:
    fill, edge = theme.fills["round"]
    if box.node.kind == "mul":
        arm = 5.0 * 0.72
        size = _number(2 * arm)
        down, up = (_point((box.x - arm, y)) for y in (box.y - arm, box.y + arm))
        symbol = f"M{down} l{size} {size} M{up} l{size} {_number(-2 * arm)}"
    else:
        arm = 5.0
        left, top = _point((box.x - arm, box.y)), _point((box.x, box.y - arm))
        symbol = f"M{left} h{_number(2 * arm)} M{top} v{_number(2 * arm)}"
    return [
        _element(
            "circle", cx=box.x, cy=box.y, r=box.w / 2, fill=fill, stroke=edge, stroke_width="1.3"
        ),
        _element("path", d=symbol, stroke=edge, stroke_width="1.5", stroke_linecap="round"),
    ]


def _render_side_input(box: Box, theme: Theme) -> list[str]:
    """Return an arrow from the right with the names of the other inputs of a sub-layer."""
    if not box.node.side:
        return []
    right, end = box.x + box.w / 2, box.x + box.w / 2 + side_width(box.node)
    arrow = f"M{_point((right + 22, box.y))} L{_point((right, box.y))}"
    return [
        _element("path", d=arrow, stroke=theme.line, stroke_width="1.5", marker_end="url(#arrow)"),
        _element(
            "text", escape(box.node.side), x=end, y=box.y + 4, text_anchor="end",
            font_size=SMALL_FONT_SIZE, fill=theme.quiet,
        ),
    ]  # fmt: skip


def _render_text(
    text: str, x: float, y: float, size: float, color: str, *, italic: bool = False
) -> str:
    style = {"font_style": "italic"} if italic else {}
    return _element(
        "text", escape(text), x=x, y=y + size * 0.35, text_anchor="middle", font_size=size,
        fill=color, **style,
    )  # fmt: skip


def _element(tag: str, content: str = "", **attributes: float | str) -> str:
    """Return an SVG element; underscores in the names of attributes become hyphens."""
    text = " ".join(
        f'{name.replace("_", "-")}="{value if isinstance(value, str) else _number(value)}"'
        for name, value in attributes.items()
    )
    return f"<{tag} {text}>{content}</{tag}>" if content else f"<{tag} {text}/>"


def _point(point: Point) -> str:
    return f"{_number(point[0])} {_number(point[1])}"


def _number(value: float) -> str:
    """Format a coordinate with at most one decimal; -0 becomes 0."""
    return f"{round(value, 1):g}" if round(value, 1) != 0 else "0"
