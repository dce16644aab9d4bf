"""Writing diagrams as SVG: valid, accessible, the same bytes for the same diagrams."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from addnorm.report.diagram.graph import ROUND_KINDS
from addnorm.report.diagram.layout import (
    FONT_SIZE,
    SMALL_FONT_SIZE,
    TINY_FONT_SIZE,
    Box,
    Diagram,
    Line,
    Panel,
    format_note,
    side_width,
)
from addnorm.report.diagram.symbols import MINUS, TIMES
from addnorm.report.diagram.text_metrics import text_width, wrap

FONT_FAMILY = (
    "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
)
TITLE_SIZE = 17.0
DIAGRAM_GAP, PAGE_MARGIN, BADGE_WIDTH, FORMULA_LINE_HEIGHT = 34.0, 28.0, 44.0, 18.0
MIN_DIAGRAM_WIDTH = 250.0
"""Width that every diagram gets at least, so that its formula has room."""


@dataclass(frozen=True)
class Theme:
    """Colours: of paper, lines and words, and fill and edge of each kind of box."""

    paper: str
    ink: str
    quiet: str
    line: str
    panel: str
    panel_edge: str
    fills: dict[str, tuple[str, str]]


THEMES = {
    "light": Theme(
        "#ffffff", "#1f2430", "#667085", "#475066", "#f6f7f9", "#dfe3ea",
        {
            "self": ("#fde6d2", "#d98a4a"), "cross": ("#fbdfe4", "#c9697e"),
            "ffn": ("#d8e8fb", "#5b8fd0"), "other": ("#e8e3f8", "#8a78c8"),
            "norm": ("#f8f1c4", "#b8a136"), "mix": ("#dff0e2", "#5fa36e"),
            "scale": ("#ffffff", "#98a2b3"), "learned": ("#ffffff", "#5fa36e"),
            "round": ("#ffffff", "#475066"),
        },
    ),
    "dark": Theme(
        "#0d1117", "#e6edf3", "#9aa7b5", "#a9b4c2", "#151b23", "#2b3440",
        {
            "self": ("#4a3120", "#d3905a"), "cross": ("#4a242d", "#d07f91"),
            "ffn": ("#1d3653", "#6ea3e0"), "other": ("#332b55", "#9d8bdc"),
            "norm": ("#423a12", "#c3ad4a"), "mix": ("#1b3a24", "#6cb57d"),
            "scale": ("#0d1117", "#7d8896"), "learned": ("#0d1117", "#6cb57d"),
            "round": ("#0d1117", "#a9b4c2"),
        },
    ),
}  # fmt: skip


def render_svg(diagrams: Sequence[Diagram], *, theme: str = "light") -> str:
    """Diagrams side by side, their inputs on one line, each with its title and formula."""
    look = THEMES[theme]
    slots = [_slot_width(diagram) for diagram in diagrams]
    height = max(d.bottom - d.top for d in diagrams)
    texts = [
        wrap(diagram.block.formula, SMALL_FONT_SIZE + 1, slot - _badge_width(diagram) + PAGE_MARGIN)
        for diagram, slot in zip(diagrams, slots, strict=True)
    ]
    top = PAGE_MARGIN + TITLE_SIZE + 24
    baseline = top + height
    total_h = baseline + 26 + FORMULA_LINE_HEIGHT * max(map(len, texts)) + PAGE_MARGIN - 8
    total_w = 2 * PAGE_MARGIN + sum(slots) + DIAGRAM_GAP * (len(slots) - 1)
    parts = _render_head(diagrams, total_w, total_h, look)
    x = PAGE_MARGIN
    for diagram, slot, lines in zip(diagrams, slots, texts, strict=True):
        parts += _render_diagram(diagram, x, slot, baseline, lines, look)
        x += slot + DIAGRAM_GAP
    return "\n".join([*parts, "</svg>", ""])


def _slot_width(diagram: Diagram) -> float:
    title = text_width(diagram.block.title, TITLE_SIZE, bold=True)
    return max(MIN_DIAGRAM_WIDTH, diagram.right - diagram.left, title) + _badge_width(diagram)


def _badge_width(diagram: Diagram) -> float:
    """Room to the left for the number of layers."""
    return BADGE_WIDTH if any(panel.repeats > 1 for panel in diagram.panels) else 0.0


def _render_head(diagrams: Sequence[Diagram], w: float, h: float, theme: Theme) -> list[str]:
    names = ", ".join(d.block.title for d in diagrams)
    told = "; ".join(f"{d.block.title}: {d.block.formula}" for d in diagrams)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_format_number(w)}" height="{_format_number(h)}" '
        f'viewBox="0 0 {_format_number(w)} {_format_number(h)}" role="img" aria-labelledby="title desc" '
        f'font-family="{FONT_FAMILY}" font-size="{_format_number(FONT_SIZE)}" fill="{theme.ink}">',
        f'<title id="title">{escape(f"Block diagrams: {names}")}</title>',
        f'<desc id="desc">{escape(told)}</desc>',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0 0.6 L8 4 L0 7.4 L1.6 4 Z" fill="{theme.line}"/></marker></defs>',
        f'<rect width="{_format_number(w)}" height="{_format_number(h)}" rx="10" fill="{theme.paper}"/>',
    ]


def _render_diagram(
    diagram: Diagram, x: float, slot: float, baseline: float, formula: list[str], theme: Theme
) -> list[str]:
    middle = x + (slot + _badge_width(diagram)) / 2
    shift = middle - (diagram.left + diagram.right) / 2
    head = f'font-size="{_format_number(TITLE_SIZE)}" font-weight="600" text-anchor="middle"'
    parts = [f'<text x="{_format_number(middle)}" y="{_format_number(PAGE_MARGIN + TITLE_SIZE - 3)}" {head}>'
             f"{escape(diagram.block.title)}</text>"]  # fmt: skip
    parts.append(
        f'<g transform="translate({_format_number(shift)} {_format_number(baseline - diagram.bottom)})">'
    )
    for panel in diagram.panels:
        parts += _render_panel(panel, theme)
    parts += [_render_line(line, theme) for line in diagram.lines]
    parts += [sign for line in diagram.lines for sign in _render_minus(line, theme)]
    parts += [part for box in diagram.boxes for part in _render_box(box, theme)]
    parts.append("</g>")
    for number, text in enumerate(formula):
        y = baseline + 26 + FORMULA_LINE_HEIGHT * number
        parts.append(
            f'<text x="{_format_number(middle)}" y="{_format_number(y)}" text-anchor="middle" font-size="{_format_number(SMALL_FONT_SIZE + 1)}" '
            f'fill="{theme.quiet}">{_render_subscripts(text)}</text>'
        )
    return parts


def _render_subscripts(text: str) -> str:
    """N_final as N with `final` below the line; escaped."""

    def lower(found: re.Match[str]) -> str:
        base, below = found[0].split("_", 1)
        small = f'<tspan dy="3" font-size="{_format_number(TINY_FONT_SIZE - 1)}">{below.strip("{}")}</tspan>'
        return f'{base}{small}<tspan dy="-3">&#8203;</tspan>'  # a mark of no width goes back up

    letter, word = r"[^\W\d_]_(?:\{[^}]*\}|\w+)", r"[^\W\d_]+_\w{1,2}(?!\w)"
    return re.sub(rf"(?<!\w)(?:{letter}|{word})", lower, escape(text))


def _render_panel(panel: Panel, theme: Theme) -> list[str]:
    w, h = panel.right - panel.left, panel.bottom - panel.top
    parts = [
        f'<rect x="{_format_number(panel.left)}" y="{_format_number(panel.top)}" width="{_format_number(w)}" height="{_format_number(h)}" rx="12" '
        f'fill="{theme.panel}" stroke="{theme.panel_edge}"/>'
    ]
    if panel.repeats > 1:
        y = (panel.top + panel.bottom) / 2 + 5
        parts.append(
            f'<text x="{_format_number(panel.left - 10)}" y="{_format_number(y)}" text-anchor="end" fill="{theme.quiet}">'
            f"{panel.repeats} {TIMES}</text>"
        )
    return parts


def _render_line(line: Line, theme: Theme) -> str:
    thick = 3.2 if line.route.edge.wide else 1.5
    return (
        f'<path d="{_path(line.points)}" fill="none" stroke="{theme.line}" '
        f'stroke-width="{_format_number(thick)}" marker-end="url(#arrow)"/>'
    )


def _path(points: tuple[tuple[float, float], ...], radius: float = 9.0) -> str:
    """A line with rounded corners."""
    said = [f"M{_format_number(points[0][0])} {_format_number(points[0][1])}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        r = min(radius, _distance(before, here) / 2, _distance(here, after) / 2)
        enter, leave = _move_toward(here, before, r), _move_toward(here, after, r)
        said.append(f"L{_format_number(enter[0])} {_format_number(enter[1])}")
        said.append(
            f"Q{_format_number(here[0])} {_format_number(here[1])} {_format_number(leave[0])} {_format_number(leave[1])}"
        )
    return " ".join([*said, f"L{_format_number(points[-1][0])} {_format_number(points[-1][1])}"])


def _distance(a: tuple[float, float], b: tuple[float, float]) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _move_toward(a: tuple[float, float], b: tuple[float, float], r: float) -> tuple[float, float]:
    far = _distance(a, b) or 1.0
    return a[0] + (b[0] - a[0]) * r / far, a[1] + (b[1] - a[1]) * r / far


def _render_minus(line: Line, theme: Theme) -> list[str]:
    """A minus where something is taken away."""
    if not line.route.edge.minus:
        return []
    (before, _), (x, y) = line.points[-2:]
    beside = (x - 10 if before < x else x + 10, y - 9) if before != x else (x + 9, y + 8)
    return [_render_text(MINUS, *beside, FONT_SIZE, theme.ink)]


def _render_box(box: Box, theme: Theme) -> list[str]:
    node = box.node
    if node.kind in ("input", "output"):
        return [_render_text(node.label, box.x, box.y, FONT_SIZE, theme.ink, italic=True)]
    if node.kind in ROUND_KINDS:
        return _render_circle(box, theme)
    key = node.kind
    if key == "sublayer":
        key = {"Self-attention": "self", "Cross-attention": "cross", "Feed-forward": "ffn"}.get(
            node.label, "other"
        )
    if key == "scale" and node.learned:
        key = "learned"
    fill, edge = theme.fills[key]
    round_ = box.h / 2 if node.kind == "scale" else 8.0
    parts = [
        f'<rect x="{_format_number(box.x - box.w / 2)}" y="{_format_number(box.top)}" width="{_format_number(box.w)}" '
        f'height="{_format_number(box.h)}" rx="{_format_number(round_)}" fill="{fill}" stroke="{edge}" '
        'stroke-width="1.3"/>'
    ]
    size = SMALL_FONT_SIZE if node.kind == "scale" else FONT_SIZE
    rise = 7.0 if node.note else 0.0
    parts.append(_render_text(node.label, box.x, box.y - rise, size, theme.ink))
    if node.note:
        parts.append(
            _render_text(format_note(node), box.x, box.y + 10, TINY_FONT_SIZE, theme.quiet)
        )
    return parts + _render_side_input(box, theme)


def _render_circle(box: Box, theme: Theme) -> list[str]:
    fill, edge = theme.fills["round"]
    arm = 5.0
    if box.node.kind == "mul":
        arm *= 0.72
        cross = f"M{_format_number(box.x - arm)} {_format_number(box.y - arm)} l{_format_number(2 * arm)} {_format_number(2 * arm)} " \
                f"M{_format_number(box.x - arm)} {_format_number(box.y + arm)} l{_format_number(2 * arm)} {_format_number(-2 * arm)}"  # fmt: skip
    else:
        cross = f"M{_format_number(box.x - arm)} {_format_number(box.y)} h{_format_number(2 * arm)} " \
                f"M{_format_number(box.x)} {_format_number(box.y - arm)} v{_format_number(2 * arm)}"  # fmt: skip
    return [
        f'<circle cx="{_format_number(box.x)}" cy="{_format_number(box.y)}" r="{_format_number(box.w / 2)}" fill="{fill}" '
        f'stroke="{edge}" stroke-width="1.3"/>',
        f'<path d="{cross}" stroke="{edge}" stroke-width="1.5" stroke-linecap="round"/>',
    ]


def _render_side_input(box: Box, theme: Theme) -> list[str]:
    """What a sub-layer reads besides its branch, arriving from the right."""
    if not box.node.side:
        return []
    right, end = box.x + box.w / 2, box.x + box.w / 2 + side_width(box.node)
    return [
        f'<path d="M{_format_number(right + 22)} {_format_number(box.y)} L{_format_number(right)} {_format_number(box.y)}" stroke="{theme.line}" '
        'stroke-width="1.5" marker-end="url(#arrow)"/>',
        f'<text x="{_format_number(end)}" y="{_format_number(box.y + 4)}" text-anchor="end" font-size="{_format_number(SMALL_FONT_SIZE)}" '
        f'fill="{theme.quiet}">{escape(box.node.side)}</text>',
    ]


def _render_text(
    text: str, x: float, y: float, size: float, color: str, *, italic: bool = False
) -> str:
    style = ' font-style="italic"' if italic else ""
    return (
        f'<text x="{_format_number(x)}" y="{_format_number(y + size * 0.35)}" text-anchor="middle" '
        f'font-size="{_format_number(size)}" fill="{color}"{style}>{escape(text)}</text>'
    )


def _format_number(number: float) -> str:
    """A number with at most one decimal."""
    return f"{round(number, 1):g}" if round(number, 1) != 0 else "0"
