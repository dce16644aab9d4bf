"""Text cells of CSV files that a spreadsheet does not execute.

A spreadsheet runs a cell that begins with `=`, `+`, `-`, `@`, a tab or a line break as a formula,
even if it is quoted in the CSV file (CSV injection). OWASP recommends an apostrophe before it.
"""

import re
from typing import Any

FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""Beginning of a cell to escape; apostrophes before it make the escaping reversible."""


def escape_formula(cell: Any) -> Any:
    """Return the cell with an apostrophe before it if it is a text that begins like a formula.

    Numbers, also as text, are returned unchanged.

    >>> escape_formula("=1+1"), escape_formula("-1.5"), escape_formula(-1.5), escape_formula("text")
    ("'=1+1", '-1.5', -1.5, 'text')
    """
    if not isinstance(cell, str) or not FORMULA.match(cell) or _is_number(cell):
        return cell
    return f"'{cell}"


def unescape_formula(cell: str) -> str:
    """Return the cell that `escape_formula` was called with.

    >>> unescape_formula("'=1+1"), unescape_formula("'quoted'")
    ('=1+1', "'quoted'")
    """
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", cell, re.ASCII) is not None
