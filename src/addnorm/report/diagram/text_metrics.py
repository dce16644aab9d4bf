"""Estimated text widths, and line breaking.

SVG does not report the width of text, so boxes are sized from a table of character widths.
"""

import re

# Widths of Helvetica and similar fonts in units of the font size, rounded up.
_NARROW, _SLIM, _WIDE, _BROAD = 0.30, 0.38, 0.80, 0.92
_WIDTHS = (
    dict.fromkeys("iljI.,:;|!'`", _NARROW)
    | dict.fromkeys(' ()[]{}frt-/\\"', _SLIM)
    | dict.fromkeys("wABCDEGHKNOPQRSUVXYZ&←→√≤≥", _WIDE)
    | dict.fromkeys("mMW@%…", _BROAD)
)
_DEFAULT_WIDTH, _BOLD = 0.60, 1.07


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the estimated width of a line in pixels; it errs on the large side.

    >>> 60 < text_width("Self-attention", 14) < 110
    True
    """
    units = sum(_WIDTHS.get(letter, _DEFAULT_WIDTH) for letter in text)
    return units * size * (_BOLD if bold else 1.0)


def wrap(text: str, size: float, max_width: float) -> list[str]:
    """Break a formula into lines: after each semicolon, and between statements if it is too long.

    >>> wrap("u = f(x), x <- N(x + u); y = x", 10, 90)
    ['u = f(x),', 'x <- N(x + u);', 'y = x']
    """
    lines: list[str] = []
    for clause in text.replace("; ", ";\n").splitlines():
        # Split after commas outside of parentheses, and before "name <- " or "name ← ".
        pieces = re.split(r"(?<=,) (?![^(]*\))| (?=\S+ (?:←|<-) )", clause)
        if any(text_width(piece, size) > max_width for piece in pieces):
            pieces = clause.split()
        line = ""
        for piece in pieces:
            longer = f"{line} {piece}".strip()
            if line and text_width(longer, size) > max_width:
                lines.append(line)
                longer = piece
            line = longer
        lines.append(line)
    return lines


def shorten(text: str, size: float, max_width: float) -> str:
    """Return as many items of a comma-separated list as fit, followed by an ellipsis.

    >>> shorten("reset, update, candidate", 10, 90)
    'reset, update, …'
    """
    if text_width(text, size) <= max_width:
        return text
    items = text.split(", ")
    while len(items) > 1 and text_width(", ".join([*items, "…"]), size) > max_width:
        items.pop()
    return ", ".join([*items, "…"])
