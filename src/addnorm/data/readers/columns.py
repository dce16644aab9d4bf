"""Records out of the columns of tables."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.data.readers.streams import (
    MAX_CHARACTERS,
    SURROGATES,
    check_file,
    replace_invalid,
    single_line,
)
from addnorm.data.readers.tables import (
    MAX_SHOWN_COLUMNS,
    Row,
    check_columns,
    find_split_files,
    has_column,
    read_class_names,
    read_rows,
)
from addnorm.data.record_counts import RecordCounts


def split_files(
    table: str | Path, split_options: Mapping[str, str | None]
) -> dict[str, list[Path]]:
    """The files of each split: of the table, which may be a folder with several, and of others.

    Others that are numbers are no files but say how much to hold out, even if the folder has more.
    """
    table = Path(table)
    parts = find_split_files(table) if table.is_dir() else {"train": [table]}
    for split, other in split_options.items():
        if other is not None:
            parts.pop(split, None)
            if not is_number(other):
                parts[split] = [_resolve_split_file(split, other)]
    for path in (path for paths in parts.values() for path in paths):
        check_file(path)
    return parts


def _resolve_split_file(split: str, other: str) -> Path:
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


def read_records(
    paths: Sequence[str | Path],
    columns: Mapping[str, str],
    *,
    counts: RecordCounts,
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
        yield from _rows_to_records(rows, path, columns, errors=errors, counts=counts)


def _rows_to_records(
    rows: Iterator[Row],
    path: Path,
    columns: Mapping[str, str],
    *,
    errors: str,
    counts: RecordCounts,
) -> Iterator[dict[str, str]]:
    classes = read_class_names(path, columns["label"]) if "label" in columns else []
    keep_breaks = set(columns) == {"text"}  # a language model may see several lines
    missing = set(columns.values())  # so far: rows of JSON need not have all columns
    there: dict[str, None] = {}
    for row in rows:
        counts.add_read()
        if missing:
            there.update(dict.fromkeys(islice(row.values, MAX_SHOWN_COLUMNS)))
            missing = {name for name in missing if not has_column(row.values, name)}
        record: dict[str, str] = {}
        flaw = row.error
        for part, name in columns.items():
            if flaw:
                break
            value = _get_value(row.values, name)
            if part == "label" and isinstance(value, int) and 0 <= value < len(classes):
                value = classes[value]
            text, flaw = _cell_to_text(value)
            if flaw == "invalid UTF-8" and errors == "refuse":
                raise UserError(
                    f"{path}, {row.location} is no UTF-8 in column {name!r}; "
                    f"try --errors drop or --errors replace"
                )
            if flaw == "invalid UTF-8" and errors == "replace":
                counts.note("cells with invalid UTF-8, its bytes replaced")
                text, flaw = replace_invalid(text), ""
            record[part] = text if keep_breaks else single_line(text, counts).strip()
        if flaw:
            counts.drop(flaw, f"{path}, {row.location}")
        else:
            yield record
    if missing and there:
        check_columns(path, list(there), sorted(missing))


def _get_value(values: Mapping[str, Any], name: str) -> Any:
    """The value of a column; `a.b` is b of a unless a column has that very name."""
    if name in values:
        return values[name]
    value: Any = values
    for step in name.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value


def _cell_to_text(value: Any) -> tuple[str, str]:
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
