"""Rows of a run as a CSV table."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from addnorm.core.rows import Row
from addnorm.data.csv_cells import escape_formula
from addnorm.report.output import open_output

LEADING_COLUMNS = ("step", "name", "value", "split", "stack", "site", "layer", "kind")
"""First columns of a table of rows, in this order; other fields follow by name."""


def write_rows_csv(path: Path, rows: Sequence[Row], *, escape_formulas: bool = False) -> Path:
    """Write rows with one line each and return the path.

    Args:
        path: the file
        rows: the rows
        escape_formulas: whether texts that a spreadsheet would run get an apostrophe before them
    """
    names = {name for row in rows for name in row}
    columns = [name for name in LEADING_COLUMNS if name in names]
    columns += sorted(names - set(LEADING_COLUMNS))
    return write_csv(path, columns, rows, escape_formulas=escape_formulas)


def write_csv(
    path: Path,
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    escape_formulas: bool,
) -> Path:
    """Write rows as RFC 4180 CSV; missing values and NaN are empty fields."""
    clean = escape_formula if escape_formulas else lambda cell: cell
    with (
        open_output(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="replace", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(map(clean, columns))
        writer.writerows(
            [clean(_blank_nan(line.get(name, ""))) for name in columns] for line in rows
        )
    return path


def _blank_nan(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value
