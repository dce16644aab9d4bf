"""Records out of the columns of tables."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.data.corpus import COLUMNS
from addnorm.data.readers.streams import MAX_CHARACTERS, SURROGATES, check_file, mended, one_line
from addnorm.data.readers.tables import (
    SHOWN,
    Row,
    check_columns,
    class_names,
    folder_parts,
    has_column,
    read_rows,
)
from addnorm.data.record_counts import Counts


def task_of(chosen: Mapping[str, str | None]) -> tuple[str, dict[str, str]]:
    """The task that the chosen columns are for, and they alone."""
    columns = {part: name for part, name in chosen.items() if name is not None}
    for task, parts in COLUMNS.items():
        if set(columns) == set(parts):
            return task, columns
    got = " ".join(f"--{part}" for part in columns) or "no column"
    raise UserError(
        f"got {got}; wanted --source and --target (translation), --text (language model), or "
        f"--text and --label (classification)"
    )


def column_parts(table: str | Path, others: Mapping[str, str | None]) -> dict[str, list[Path]]:
    """The files of each split: of the table, which may be a folder with several, and of others.

    Others that are numbers are no files but say how much to hold out, even if the folder has more.
    """
    table = Path(table)
    parts = folder_parts(table) if table.is_dir() else {"train": [table]}
    for split, other in others.items():
        if other is not None:
            parts.pop(split, None)
            if not is_number(other):
                parts[split] = [_given(split, other)]
    for path in (path for paths in parts.values() for path in paths):
        check_file(path)
    return parts


def _given(split: str, other: str) -> Path:
    if Path(other).is_file():
        return Path(other)
    what = "a folder" if Path(other).is_dir() else "no file that is there"
    raise UserError(
        f"--{split} is {other!r}, which is {what} and no number; wanted a table of its own, a "
        f"number of records such as 500, or a share of them such as 0.05"
    )


def is_number(text: str) -> bool:
    """Whether an option is a size rather than a file."""
    try:
        return float(text) is not None
    except ValueError:
        return False


def records(
    paths: Sequence[str | Path],
    columns: Mapping[str, str],
    *,
    counts: Counts,
    errors: str = "drop",
    format: str | None = None,
    header: bool | None = None,
) -> Iterator[dict[str, str]]:
    """Records out of the rows of files: `columns` says which one is the source, the text, ...

    Columns that are all numbers mean a file without a header, unless `header` says otherwise.
    Nested values are reached with a dot, as in `translation.de`.
    """
    names = list(columns.values())
    if header is None:
        header = not all(name.isdigit() for name in names)
    for path in map(Path, paths):
        rows = read_rows(path, format=format, header=header, names=names)
        yield from _records(rows, path, columns, errors=errors, counts=counts)


def _records(
    rows: Iterator[Row], path: Path, columns: Mapping[str, str], *, errors: str, counts: Counts
) -> Iterator[dict[str, str]]:
    classes = class_names(path, columns["label"]) if "label" in columns else []
    keep_breaks = set(columns) == {"text"}  # a language model may see several lines
    missing = set(columns.values())  # so far: rows of JSON need not have all columns
    there: dict[str, None] = {}
    for row in rows:
        counts.saw()
        if missing:
            there.update(dict.fromkeys(islice(row.values, SHOWN)))
            missing = {name for name in missing if not has_column(row.values, name)}
        record: dict[str, str] = {}
        flaw = row.flaw
        for part, name in columns.items():
            if flaw:
                break
            value = _value(row.values, name)
            if part == "label" and isinstance(value, int) and 0 <= value < len(classes):
                value = classes[value]
            text, flaw = _text(value)
            if flaw == "invalid UTF-8" and errors == "refuse":
                raise UserError(
                    f"{path}, {row.place} is no UTF-8 in column {name!r}; "
                    f"try --errors drop or --errors replace"
                )
            if flaw == "invalid UTF-8" and errors == "replace":
                counts.note("cells with invalid UTF-8, its bytes replaced")
                text, flaw = mended(text), ""
            record[part] = text if keep_breaks else one_line(text, counts).strip()
        if flaw:
            counts.drop(flaw, f"{path}, {row.place}")
        else:
            yield record
    if missing and there:
        check_columns(path, list(there), sorted(missing))


def _value(values: Mapping[str, Any], name: str) -> Any:
    """The value of a column; `a.b` is b of a unless a column has that very name."""
    if name in values:
        return values[name]
    value: Any = values
    for step in name.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value


def _text(value: Any) -> tuple[str, str]:
    """A cell as text, and what is wrong with it."""
    if isinstance(value, bool):
        return str(value).lower(), ""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "", "empty"
    if not isinstance(value, str | int | float):
        return "", "neither text nor number"
    text = str(value)
    if len(text) > MAX_CHARACTERS:
        return "", "too long"
    if not text.isascii() and SURROGATES.search(text):
        return text, "invalid UTF-8"
    return text, "" if text.strip() else "empty"
