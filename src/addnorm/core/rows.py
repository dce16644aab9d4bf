"""Rows: one measured number each, a flat record, kept as JSON lines."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError

Row = Mapping[str, Any]


def write_rows(path: str | Path, rows: Iterable[Row], *, append: bool = False) -> None:
    """Write rows, one JSON object a line.

    A new file comes into being whole (temporary name, then renamed); appended rows are flushed
    together. Numbers that JSON has no word for are written as the strings "nan", "inf" and "-inf".
    """
    path = Path(path)
    text = "".join(
        json.dumps(_plain(row), allow_nan=False, ensure_ascii=False) + "\n" for row in rows
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    if append:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, one by one.

    A last line cut short by a killed writer is left out; a broken line anywhere else is refused
    with its number.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no rows at {path}: the file does not exist")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as problem:
                if not line.endswith("\n"):
                    return  # an interrupted append; its row was never finished
                raise UserError(
                    f"{path}, line {number} is not JSON ({problem.msg}); wanted one object a line"
                ) from None
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number} holds {row!r}; wanted one object a line")
            yield {name: _number(value) for name, value in row.items()}


def _plain(row: Row) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def _number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value
