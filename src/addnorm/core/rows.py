"""Rows: flat records with one measured number each, stored as JSON lines."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write, hash_prefix

Row = Mapping[str, Any]
NONFINITE_STRINGS = ("nan", "inf", "-inf")


@dataclass(frozen=True)
class RowsMark:
    """Length of a file of rows and the checksum of that many bytes, stored elsewhere.

    A file that grows keeps its marks; one that is emptied, truncated or changed does not.
    """

    size: int = 0
    checksum: str = hashlib.sha256().hexdigest()

    def check(self, path: Path) -> None:
        """Raise `UserError` unless the first rows of a file are those that the mark covers."""
        if self.size:
            _check_mark(self, path)


def thinned_interval(every: int, step: int, *, full: int) -> int:
    """Return the interval between measured steps at a step, so that a long run has few rows.

    The first `full` measurements are `every` steps apart. From then on, the interval doubles
    whenever the step number has doubled: a run of any length has about `full` + `full` / 2 *
    log2(steps / (`full` * `every`)) measurements. A pure function, so that a resumed run measures
    the same steps.

    >>> [thinned_interval(10, step, full=100) for step in (500, 1000, 1999, 2000, 4000, 64_000)]
    [10, 10, 10, 20, 40, 640]
    """
    return every << max(0, (step // (full * every)).bit_length() - 1)


class RowLog:
    """A file of rows that a run appends to; knows its mark at all times."""

    def __init__(self, path: Path) -> None:
        self.path, self._size, self._hash = path, 0, hashlib.sha256()

    @property
    def mark(self) -> RowsMark:
        """The mark at the end of the file."""
        return RowsMark(self._size, self._hash.hexdigest())

    def truncate(self, mark: RowsMark) -> None:
        """Remove the rows after a mark; raise `UserError` if the rows before it have changed."""
        self._size, self._hash = mark.size, _check_mark(mark, self.path)
        if self.path.exists():
            os.truncate(self.path, mark.size)

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows. If it fails, for example on a full disk, the file stays as it was."""
        data = _to_bytes(rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.path.open("ab") as file:
                file.write(data)
        except OSError:
            if self.path.exists():
                os.truncate(self.path, self._size)
            raise
        self._size += len(data)
        self._hash.update(data)


def _check_mark(mark: RowsMark, path: Path) -> "hashlib._Hash":
    """Return the hash of the bytes that a mark covers; raise `UserError` if they have changed."""
    if not mark.size:
        return hashlib.sha256()
    hint = "restore it"
    try:
        size = path.stat().st_size
        if size < mark.size:
            raise UserError(
                f"{path} is truncated: expected at least {mark.size:,} bytes, got {size:,}; {hint}"
            )
        digest = hash_prefix(path, mark.size)
    except OSError as problem:
        raise UserError(f"{path} cannot be read ({problem.strerror or problem}); {hint}") from None
    if digest.hexdigest() != mark.checksum:
        raise UserError(f"{path} has changed since it was written: its checksum differs; {hint}")
    return digest


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
    data = _to_bytes(rows)
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
            except (ValueError, RecursionError) as problem:
                if not line.endswith(b"\n"):
                    return  # an interrupted append
                reason = "nested too deeply" if isinstance(problem, RecursionError) else problem
                raise UserError(
                    f"{path}, line {number} is not JSON ({reason}); expected one object per line"
                ) from None
            if not isinstance(row, dict):
                shown = line[:60].decode(errors="replace").strip()
                raise UserError(f"{path}, line {number}: expected a JSON object, got {shown}")
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
        except (ValueError, RecursionError):
            file.truncate(start)
        else:
            file.write(b"\n")


def _to_bytes(rows: Iterable[Row]) -> bytes:
    text = "".join(json.dumps(_to_json_row(row), ensure_ascii=False) + "\n" for row in rows)
    return text.encode("utf-8", errors="backslashreplace")  # lone surrogates become JSON escapes


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
