"""Markdown tables and the first paragraphs of docstrings."""

from collections.abc import Iterable


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; vertical bars in cells are escaped.

    >>> print(markdown_table(("a", "b"), [("1", "x|y")]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    header = list(header)
    lines = [_table_line(header), "|" + "---|" * len(header), *map(_table_line, rows)]
    return "\n".join(lines)


def _table_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"


def first_paragraph(text: str | None) -> str:
    """Return the first paragraph of a docstring or help text."""
    return (text or "").strip().split("\n\n")[0]
