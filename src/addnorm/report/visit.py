"""A drawing of what the doctor saw: one block of each sort, the stream upwards, as it was wired."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from addnorm.doctor.report import Block, Report
from addnorm.report.svg import FAMILY, THEMES

WIDTH, STEP, BOX, GAP = 250, 40, 28, 30
FILLS = {
    "self-attention": "self", "cross-attention": "cross", "feed-forward": "ffn",
    "convolution": "mix", "mixer": "mix", "other": "other",
}  # fmt: skip
MOST = 6
"""Sorts of blocks that are drawn."""


def sorts(report: Report) -> list[tuple[Block, int]]:
    """One block of each sort and how many there are of it, in the order of the first."""
    found: dict[tuple[object, ...], list[Block]] = {}
    for block in report.blocks:
        found.setdefault((block.kind, block.wiring, block.tags, block.norm), []).append(block)
    return [(blocks[0], len(blocks)) for blocks in found.values()][:MOST]


def drawing(report: Report, *, theme: str) -> str:
    """The sorts of blocks side by side, as SVG."""
    kinds = sorts(report)
    look = THEMES[theme]
    height = max((_height(block) for block, _ in kinds), default=0) + 90
    width = (WIDTH + GAP) * max(len(kinds), 1) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="visit" font-family="{escape(FAMILY)}">',
        '<title id="visit">One block of each sort, the stream from below to above</title>',
    ]
    for place, (block, count) in enumerate(kinds):
        left = GAP + place * (WIDTH + GAP)
        parts += _one(block, count, left, height, look)
    return "\n".join([*parts, "</svg>"])


def _stages(block: Block) -> list[tuple[str, str]]:
    """What the branch passes from the fork to the add: (fill, words)."""
    norm = block.norm or "norm"
    found: list[tuple[str, str]] = []
    if block.wiring in ("pre_ln", "sandwich", "pre_post", "sandwich_post"):
        found.append(("norm", norm))
    inside = "norm inside" if block.wiring == "mid-norm" else ""
    found.append((FILLS.get(block.kind, "other"), " ".join([block.kind, inside]).strip()))
    if block.wiring in ("res_post", "sandwich", "res_post_post", "sandwich_post"):
        found.append(("norm", norm))
    for tag in ("rezero", "layer-scale", "scaled-branch", "gated"):
        if tag in block.tags:
            value = f" {block.branch_scale:.3g}" if block.branch_scale is not None else ""
            found.append(("learned" if tag != "scaled-branch" else "scale", f"{tag}{value}"))
    return found


def _height(block: Block) -> int:
    return STEP * (len(_stages(block)) + 4)


def _one(block: Block, count: int, left: float, height: float, look: object) -> list[str]:
    fills, ink, line = look.fills, look.ink, look.line  # type: ignore[attr-defined]
    stages = _stages(block)
    stream, branch = left + 40, left + 160
    bottom = height - 50
    parts = [_text(left + WIDTH / 2, height - 14, f"{count} x {block.wiring}", ink, 13)]
    y = bottom
    parts.append(_line([(stream, bottom + 10), (stream, 30)], line))
    if block.wiring == "false_pre_ln":
        y -= STEP
        parts += _box(stream, y, block.norm or "norm", fills["norm"], ink)
    fork = y - STEP / 2
    y = fork - STEP / 2
    top = y - STEP * len(stages)
    parts.append(_line([(stream, fork), (branch, fork), (branch, top), (stream, top)], line))
    for fill, words in stages:
        y -= 0
        parts += _box(branch, y - STEP / 2, words, fills[fill], ink)
        y -= STEP
    if "scaled-shortcut" in block.tags:
        value = "scale" if block.shortcut_scale is None else f"x {block.shortcut_scale:.3g}"
        parts += _box(stream, (fork + top) / 2, value, fills["scale"], ink, wide=64)
    if "projection-shortcut" in block.tags:
        parts += _box(stream, (fork + top) / 2, "matrix", fills["mix"], ink, wide=64)
    if "hyper-connections" in block.tags:
        parts += _box(stream, (fork + top) / 2, "mix", fills["mix"], ink, wide=64)
    fill, edge = fills["round"]
    parts.append(f'<circle cx="{stream}" cy="{top}" r="11" fill="{fill}" stroke="{edge}"/>')
    parts.append(_text(stream, top + 5, "+", ink, 15))
    if block.wiring in ("post_ln", "pre_post", "res_post_post", "sandwich_post"):
        parts += _box(stream, top - STEP * 0.9, block.norm or "norm", fills["norm"], ink)
    return parts


def _box(
    x: float, y: float, words: str, fill: tuple[str, str], ink: str, wide: float = 128
) -> list[str]:
    return [
        f'<rect x="{x - wide / 2}" y="{y - BOX / 2}" width="{wide}" height="{BOX}" rx="6" '
        f'fill="{fill[0]}" stroke="{fill[1]}"/>',
        _text(x, y + 4, words, ink, 12),
    ]


def _line(points: Sequence[tuple[float, float]], colour: str) -> str:
    way = " ".join(f"{x},{y}" for x, y in points)
    return f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.4"/>'


def _text(x: float, y: float, words: str, colour: str, size: int) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="middle" fill="{colour}">'
        f"{escape(words)}</text>"
    )
