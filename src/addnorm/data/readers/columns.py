"""Records from the columns of tables."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.data.readers.tables import (
    MAX_SHOWN_COLUMNS,
    Row,
    check_columns,
    find_split_files,
    has_column,
    read_class_names,
    read_rows,
)
from addnorm.data.readers.text_lines import (
    MAX_CHARACTERS,
    SURROGATES,
    check_file,
    replace_invalid,
    single_line,
)
from addnorm.data.record_counts import RecordCounts


def split_files(
    table: str | Path, split_options: Mapping[str, str | None]
) -> dict[str, list[Path]]:
    """Return the files of each split.

    Args:
        table: a table, or a folder with one per split
        split_options: values of --valid and --test: a table, a size, or None. A size replaces a
            file of the folder
    """
    table = Path(table)
    splits = find_split_files(table) if table.is_dir() else {"train": [table]}
    for split, option in split_options.items():
        if option is not None:
            splits.pop(split, None)
            if not is_number(option):
                splits[split] = [_resolve_split_file(split, option)]
    for path in (path for paths in splits.values() for path in paths):
        check_file(path)
    return splits


def _resolve_split_file(split: str, option: str) -> Path:
    if Path(option).is_file():
        return Path(option)
    what = ", which is a folder" if Path(option).is_dir() else ""
    raise UserError(
        f"--{split}: expected a table, a number of records such as 500, or a fraction such as "
        f"0.05, got {option!r}{what}"
    )


def is_number(text: str) -> bool:
    """Return whether an option is a size rather than a file."""
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
    """Yield the records of tables.

    Args:
        paths: the files
        columns: column of the table for each column of a record; `translation.de` is a nested one
        counts: counts of read and dropped records, updated in place
        errors: handling of invalid UTF-8: drop, replace or strict
        format: format of the files; inferred from their names by default
        header: whether the first line names the columns; by default, unless all are indices
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
    keep_breaks = set(columns) == {"text"}  # text for language models keeps its lines
    missing = set(columns.values())  # not seen yet: rows of JSON may lack columns
    present: dict[str, None] = {}
    for row in rows:
        counts.add_read()
        if missing:
            present.update(dict.fromkeys(islice(row.values, MAX_SHOWN_COLUMNS)))
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
            if flaw == "invalid UTF-8" and errors == "strict":
                raise UserError(
                    f"{path}, {row.location}: expected UTF-8 in column {name!r}; try --errors drop "
                    "or --errors replace"
                )
            if flaw == "invalid UTF-8" and errors == "replace":
                counts.note("cells with invalid UTF-8, its bytes replaced")
                text, flaw = replace_invalid(text), ""
            record[part] = text if keep_breaks else single_line(text, counts).strip()
        if flaw:
            counts.drop(flaw, f"{path}, {row.location}")
        else:
            yield record
    if missing and present:
        check_columns(path, list(present), sorted(missing))


def _get_value(values: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column; `a.b` is b of a, unless a column has that name."""
    if name in values:
        return values[name]
    value: Any = values
    for step in name.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value


def _cell_to_text(value: Any) -> tuple[str, str]:
    """Return a cell as text, and the reason to drop it; empty if there is none."""
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
