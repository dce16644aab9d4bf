"""Short, self-contained HTML for `_repr_html_`: a title, lines of text and a table."""

from collections.abc import Sequence
from html import escape


def render_html(
    title: str,
    lines: Sequence[str] = (),
    *,
    head: Sequence[str] = (),
    rows: Sequence[Sequence[object]] = (),
    details: str = "",
) -> str:
    """Return HTML without scripts and style sheets, so that it looks like its notebook.

    Args:
        title: what is shown
        lines: paragraphs below the title
        head: names of the columns of a table
        rows: cells of the table
        details: longer text, folded away

    >>> render_html("a < b", ["first"])
    '<div><strong>a &lt; b</strong><p>first</p></div>'
    """
    parts = [f"<strong>{escape(title)}</strong>"]
    if rows:
        header = "".join(f"<th>{escape(name)}</th>" for name in head)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        parts.append(f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>")
    parts += [f"<p>{escape(line)}</p>" for line in lines]
    if details:
        parts.append(f"<details><summary>details</summary><pre>{escape(details)}</pre></details>")
    return f"<div>{''.join(parts)}</div>"
