"""Writing diagrams as SVG: valid, accessible, the same bytes for the same diagrams."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from addnorm.report.diagram.graph import ROUND
from addnorm.report.diagram.layout import (
    FONT,
    SMALL,
    TINY,
    Box,
    Diagram,
    Line,
    Panel,
    note,
    side_width,
)
from addnorm.report.diagram.symbols import MINUS, TIMES
from addnorm.report.diagram.text_metrics import width, wrap

FAMILY = "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
TITLE = 17.0
BETWEEN, EDGE, BADGE, FORMULA_LINE = 34.0, 28.0, 44.0, 18.0
LEAST = 250.0
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


def svg(diagrams: Sequence[Diagram], *, theme: str = "light") -> str:
    """Diagrams side by side, their inputs on one line, each with its title and formula."""
    look = THEMES[theme]
    slots = [_slot(diagram) for diagram in diagrams]
    height = max(d.bottom - d.top for d in diagrams)
    texts = [
        wrap(diagram.block.formula, SMALL + 1, slot - _badge(diagram) + EDGE)
        for diagram, slot in zip(diagrams, slots, strict=True)
    ]
    top = EDGE + TITLE + 24
    baseline = top + height
    total_h = baseline + 26 + FORMULA_LINE * max(map(len, texts)) + EDGE - 8
    total_w = 2 * EDGE + sum(slots) + BETWEEN * (len(slots) - 1)
    parts = _head(diagrams, total_w, total_h, look)
    x = EDGE
    for diagram, slot, lines in zip(diagrams, slots, texts, strict=True):
        parts += _diagram(diagram, x, slot, baseline, lines, look)
        x += slot + BETWEEN
    return "\n".join([*parts, "</svg>", ""])


def _slot(diagram: Diagram) -> float:
    title = width(diagram.block.title, TITLE, bold=True)
    return max(LEAST, diagram.right - diagram.left, title) + _badge(diagram)


def _badge(diagram: Diagram) -> float:
    """Room to the left for the number of layers."""
    return BADGE if any(panel.repeats > 1 for panel in diagram.panels) else 0.0


def _head(diagrams: Sequence[Diagram], w: float, h: float, look: Theme) -> list[str]:
    names = ", ".join(d.block.title for d in diagrams)
    told = "; ".join(f"{d.block.title}: {d.block.formula}" for d in diagrams)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(w)}" height="{_n(h)}" '
        f'viewBox="0 0 {_n(w)} {_n(h)}" role="img" aria-labelledby="title desc" '
        f'font-family="{FAMILY}" font-size="{_n(FONT)}" fill="{look.ink}">',
        f'<title id="title">{escape(f"Block diagrams: {names}")}</title>',
        f'<desc id="desc">{escape(told)}</desc>',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0 0.6 L8 4 L0 7.4 L1.6 4 Z" fill="{look.line}"/></marker></defs>',
        f'<rect width="{_n(w)}" height="{_n(h)}" rx="10" fill="{look.paper}"/>',
    ]


def _diagram(
    diagram: Diagram, x: float, slot: float, baseline: float, formula: list[str], look: Theme
) -> list[str]:
    middle = x + (slot + _badge(diagram)) / 2
    shift = middle - (diagram.left + diagram.right) / 2
    head = f'font-size="{_n(TITLE)}" font-weight="600" text-anchor="middle"'
    parts = [f'<text x="{_n(middle)}" y="{_n(EDGE + TITLE - 3)}" {head}>'
             f"{escape(diagram.block.title)}</text>"]  # fmt: skip
    parts.append(f'<g transform="translate({_n(shift)} {_n(baseline - diagram.bottom)})">')
    for panel in diagram.panels:
        parts += _panel(panel, look)
    parts += [_line(line, look) for line in diagram.lines]
    parts += [sign for line in diagram.lines for sign in _sign(line, look)]
    parts += [part for box in diagram.boxes for part in _box(box, look)]
    parts.append("</g>")
    for number, text in enumerate(formula):
        y = baseline + 26 + FORMULA_LINE * number
        parts.append(
            f'<text x="{_n(middle)}" y="{_n(y)}" text-anchor="middle" font-size="{_n(SMALL + 1)}" '
            f'fill="{look.quiet}">{_subscripts(text)}</text>'
        )
    return parts


def _subscripts(text: str) -> str:
    """N_final as N with `final` below the line; escaped."""

    def lower(found: re.Match[str]) -> str:
        base, below = found[0].split("_", 1)
        small = f'<tspan dy="3" font-size="{_n(TINY - 1)}">{below.strip("{}")}</tspan>'
        return f'{base}{small}<tspan dy="-3">&#8203;</tspan>'  # a mark of no width goes back up

    letter, word = r"[^\W\d_]_(?:\{[^}]*\}|\w+)", r"[^\W\d_]+_\w{1,2}(?!\w)"
    return re.sub(rf"(?<!\w)(?:{letter}|{word})", lower, escape(text))


def _panel(panel: Panel, look: Theme) -> list[str]:
    w, h = panel.right - panel.left, panel.bottom - panel.top
    parts = [
        f'<rect x="{_n(panel.left)}" y="{_n(panel.top)}" width="{_n(w)}" height="{_n(h)}" rx="12" '
        f'fill="{look.panel}" stroke="{look.panel_edge}"/>'
    ]
    if panel.repeats > 1:
        y = (panel.top + panel.bottom) / 2 + 5
        parts.append(
            f'<text x="{_n(panel.left - 10)}" y="{_n(y)}" text-anchor="end" fill="{look.quiet}">'
            f"{panel.repeats} {TIMES}</text>"
        )
    return parts


def _line(line: Line, look: Theme) -> str:
    thick = 3.2 if line.route.edge.wide else 1.5
    return (
        f'<path d="{_path(line.points)}" fill="none" stroke="{look.line}" '
        f'stroke-width="{_n(thick)}" marker-end="url(#arrow)"/>'
    )


def _path(points: tuple[tuple[float, float], ...], radius: float = 9.0) -> str:
    """A line with rounded corners."""
    said = [f"M{_n(points[0][0])} {_n(points[0][1])}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        r = min(radius, _length(before, here) / 2, _length(here, after) / 2)
        enter, leave = _toward(here, before, r), _toward(here, after, r)
        said.append(f"L{_n(enter[0])} {_n(enter[1])}")
        said.append(f"Q{_n(here[0])} {_n(here[1])} {_n(leave[0])} {_n(leave[1])}")
    return " ".join([*said, f"L{_n(points[-1][0])} {_n(points[-1][1])}"])


def _length(a: tuple[float, float], b: tuple[float, float]) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _toward(a: tuple[float, float], b: tuple[float, float], r: float) -> tuple[float, float]:
    far = _length(a, b) or 1.0
    return a[0] + (b[0] - a[0]) * r / far, a[1] + (b[1] - a[1]) * r / far


def _sign(line: Line, look: Theme) -> list[str]:
    """A minus where something is taken away."""
    if not line.route.edge.minus:
        return []
    (before, _), (x, y) = line.points[-2:]
    beside = (x - 10 if before < x else x + 10, y - 9) if before != x else (x + 9, y + 8)
    return [_text(MINUS, *beside, FONT, look.ink)]


def _box(box: Box, look: Theme) -> list[str]:
    node = box.node
    if node.kind in ("input", "output"):
        return [_text(node.label, box.x, box.y, FONT, look.ink, italic=True)]
    if node.kind in ROUND:
        return _circle(box, look)
    key = node.kind
    if key == "sublayer":
        key = {"Self-attention": "self", "Cross-attention": "cross", "Feed-forward": "ffn"}.get(
            node.label, "other"
        )
    if key == "scale" and node.learned:
        key = "learned"
    fill, edge = look.fills[key]
    round_ = box.h / 2 if node.kind == "scale" else 8.0
    parts = [
        f'<rect x="{_n(box.x - box.w / 2)}" y="{_n(box.top)}" width="{_n(box.w)}" '
        f'height="{_n(box.h)}" rx="{_n(round_)}" fill="{fill}" stroke="{edge}" '
        'stroke-width="1.3"/>'
    ]
    size = SMALL if node.kind == "scale" else FONT
    rise = 7.0 if node.note else 0.0
    parts.append(_text(node.label, box.x, box.y - rise, size, look.ink))
    if node.note:
        parts.append(_text(note(node), box.x, box.y + 10, TINY, look.quiet))
    return parts + _side(box, look)


def _circle(box: Box, look: Theme) -> list[str]:
    fill, edge = look.fills["round"]
    arm = 5.0
    if box.node.kind == "mul":
        arm *= 0.72
        cross = f"M{_n(box.x - arm)} {_n(box.y - arm)} l{_n(2 * arm)} {_n(2 * arm)} " \
                f"M{_n(box.x - arm)} {_n(box.y + arm)} l{_n(2 * arm)} {_n(-2 * arm)}"  # fmt: skip
    else:
        cross = f"M{_n(box.x - arm)} {_n(box.y)} h{_n(2 * arm)} " \
                f"M{_n(box.x)} {_n(box.y - arm)} v{_n(2 * arm)}"  # fmt: skip
    return [
        f'<circle cx="{_n(box.x)}" cy="{_n(box.y)}" r="{_n(box.w / 2)}" fill="{fill}" '
        f'stroke="{edge}" stroke-width="1.3"/>',
        f'<path d="{cross}" stroke="{edge}" stroke-width="1.5" stroke-linecap="round"/>',
    ]


def _side(box: Box, look: Theme) -> list[str]:
    """What a sub-layer reads besides its branch, arriving from the right."""
    if not box.node.side:
        return []
    right, end = box.x + box.w / 2, box.x + box.w / 2 + side_width(box.node)
    return [
        f'<path d="M{_n(right + 22)} {_n(box.y)} L{_n(right)} {_n(box.y)}" stroke="{look.line}" '
        'stroke-width="1.5" marker-end="url(#arrow)"/>',
        f'<text x="{_n(end)}" y="{_n(box.y + 4)}" text-anchor="end" font-size="{_n(SMALL)}" '
        f'fill="{look.quiet}">{escape(box.node.side)}</text>',
    ]


def _text(text: str, x: float, y: float, size: float, colour: str, *, italic: bool = False) -> str:
    style = ' font-style="italic"' if italic else ""
    return (
        f'<text x="{_n(x)}" y="{_n(y + size * 0.35)}" text-anchor="middle" '
        f'font-size="{_n(size)}" fill="{colour}"{style}>{escape(text)}</text>'
    )


def _n(number: float) -> str:
    """A number with at most one decimal."""
    return f"{round(number, 1):g}" if round(number, 1) != 0 else "0"
