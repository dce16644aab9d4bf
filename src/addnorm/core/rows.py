"""Rows: flat records with one measured number each, stored as JSON lines."""

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
    """Write rows, one JSON object per line.

    Args:
        path: the file; missing parent folders are created
        rows: records of text, numbers, booleans and None. NaN and infinities, which JSON does not
            have, are written as the strings "nan", "inf" and "-inf"; `read_rows` restores them.
        append: add to the file, after removing an incomplete last line that a killed process left.
            Otherwise the file is replaced atomically.

    Raises:
        UserError: a row contains another type
    """
    path = Path(path)
    text = "".join(json.dumps(_to_json_row(row), ensure_ascii=False) + "\n" for row in rows)
    data = text.encode("utf-8", errors="backslashreplace")  # lone surrogates become JSON escapes
    path.parent.mkdir(parents=True, exist_ok=True)
    if append:
        _repair_last_line(path)
        try:
            with path.open("ab") as file:
                file.write(data)
        except OSError as problem:
            problem.filename = str(path)  # a failed write does not name its file
            raise
        return
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file.

    An incomplete last line, left by a killed process, is ignored.

    Raises:
        UserError: there is no such file, or another line is not a JSON object
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no rows at {path}: there is no such file; expected JSON lines")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8"))
            except ValueError as problem:
                if not line.endswith(b"\n"):
                    return  # an interrupted append
                raise UserError(
                    f"{path}, line {number} is not JSON ({problem}); expected one object per line"
                ) from None
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number}: expected a JSON object, got {row!r}")
            if b'nan"' in line or b'inf"' in line:  # rare, and checking each value is slow
                row = {name: _parse_number(value) for name, value in row.items()}
            yield row


def _repair_last_line(path: Path) -> None:
    """Make the file end with a complete line: drop an incomplete row, or add its line feed."""
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
                "row values: expected text, a number, True, False or None, got "
                f"{name!r}: {value!r} of type {type(value).__name__}; try float(...) or one row "
                "per number"
            )
    return {
        name: str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def _parse_number(value: Any) -> Any:
    return float(value) if value in NONFINITE_STRINGS else value
