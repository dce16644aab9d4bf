"""Rows: one measured number each, a flat record, kept as JSON lines."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write

Row = Mapping[str, Any]
NONFINITE_STRINGS = ("nan", "inf", "-inf")


def write_rows(path: str | Path, rows: Iterable[Row], *, append: bool = False) -> None:
    """Write rows, one JSON object a line.

    A new file comes into being whole (temporary name, then renamed); appended rows are flushed
    together, after a line that a killed writer left unfinished is taken away. Numbers that JSON has
    no word for are written as the strings "nan", "inf" and "-inf", always read back as numbers.
    """
    path = Path(path)
    text = "".join(json.dumps(_to_json_row(row), ensure_ascii=False) + "\n" for row in rows)
    data = text.encode("utf-8", errors="backslashreplace")  # a lone surrogate: JSON's own escape
    path.parent.mkdir(parents=True, exist_ok=True)
    if append:
        _repair_last_line(path)
        with path.open("ab") as file:
            file.write(data)
        return
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, one by one.

    A last line cut short by a killed writer is left out; a broken line anywhere else is refused
    with its number.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no rows at {path}: there is no such file; wanted one of JSON lines")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8"))
            except ValueError as problem:
                if not line.endswith(b"\n"):
                    return  # an interrupted append; its row was never finished
                raise UserError(
                    f"{path}, line {number} is not JSON ({problem}); wanted one object a line"
                ) from None
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number} holds {row!r}; wanted one object a line")
            if b'nan"' in line or b'inf"' in line:  # rare, and looking at each value takes long
                row = {name: _parse_number(value) for name, value in row.items()}
            yield row


def _repair_last_line(path: Path) -> None:
    """End the file with a whole line: an unfinished row goes, a whole one gets its line feed."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() == b"\n":
            return
        file.seek(0)
        data = file.read()
        start = data.rfind(b"\n") + 1
        try:
            json.loads(data[start:].decode("utf-8"))
        except ValueError:
            file.truncate(start)
        else:
            file.write(b"\n")


def _to_json_row(row: Row) -> dict[str, Any]:
    for name, value in row.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | None):
            raise UserError(
                f"a row holds text, numbers, True, False and None under names, got {name!r}:"
                f" {value!r} of type {type(value).__name__}; try float(...) or one row a number"
            )
    return {
        name: str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def _parse_number(value: Any) -> Any:
    return float(value) if value in NONFINITE_STRINGS else value
