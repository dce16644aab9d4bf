"""A Parquet or Arrow table as frames of bounded size, with a fixed role for each row."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from addnorm.core.errors import UserError
from addnorm.data.readers.tables import infer_format
from addnorm.tabular.columns.table_files import max_table_bytes

PART_ROWS = 1 << 14
"""Largest number of rows of a frame."""
TRAIN, VALID, TEST = 0, 1, 2
"""Roles of rows."""


class TablePart(NamedTuple):
    """Consecutive rows of a table."""

    frame: Any
    roles: np.ndarray
    """(rows) `TRAIN`, `VALID` or `TEST`."""
    draws: np.ndarray
    """(rows) uniform numbers that belong to the rows, for samples of a role."""


class TableParts:
    """Table of a Parquet file, of a folder of them, or of an Arrow file.

    The role of a row depends on the seed and on its number only, so that every pass over the table
    finds the same training rows.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        columns: Sequence[str] | None = None,
        valid: float = 0.0,
        test: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Open a table.

        Args:
            path: file, or folder of Parquet files
            columns: columns to read; all if None
            valid: fraction of validation rows
            test: fraction of test rows
            seed: seed of the roles
        """
        import pyarrow

        self.path, self.seed, self.valid, self.test = Path(path), seed, valid, test
        self.files = _list_files(self.path)
        try:
            self.pieces = [
                (file, index, rows) for file in self.files for index, rows in _count_rows(file)
            ]
            self.names = _column_names(self.files[0])
            if any(_column_names(each) != self.names for each in self.files[1:]):
                raise UserError(f"{self.path}: expected files with the same columns")
        except (pyarrow.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{self.path}: expected a Parquet or Arrow table, got a file that cannot be read "
                f"({reason})"
            ) from None
        self.columns = self.names if columns is None else list(columns)
        self.num_rows = sum(rows for _, _, rows in self.pieces)
        if not self.num_rows:
            raise UserError(f"{self.path}: expected at least one row, got none")

    def __iter__(self) -> Iterator[TablePart]:
        return self.read()

    def read(self, order: np.ndarray | None = None) -> Iterator[TablePart]:
        """Yield the parts of the table.

        Args:
            order: order of the row groups; that of the files if None
        """
        starts = np.cumsum([0, *(rows for _, _, rows in self.pieces)])
        for number in range(len(self.pieces)) if order is None else order:
            file, index, _ = self.pieces[number]
            start = int(starts[number])
            for batch in _read_piece(file, index, self.columns):
                frame = batch.to_pandas(date_as_object=False).rename(columns=str)
                rows = np.arange(start, start + len(frame))
                start += len(frame)
                yield TablePart(frame, self.roles(rows), uniform_numbers(rows, self.seed + 1))

    def roles(self, rows: np.ndarray) -> np.ndarray:
        """Return the roles of rows, given their numbers."""
        draws = uniform_numbers(rows, self.seed)
        return np.where(
            draws < self.test, TEST, np.where(draws < self.test + self.valid, VALID, TRAIN)
        )


def uniform_numbers(rows: np.ndarray, seed: int) -> np.ndarray:
    """Return a number in [0, 1) for each row number: the hash SplitMix64 of it and the seed.

    >>> bool(abs(uniform_numbers(np.arange(10_000), 3).mean() - 0.5) < 0.02)
    True
    """
    with np.errstate(over="ignore"):
        x = rows.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
        x = (x + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53


def is_too_large(path: Path) -> bool:
    """Return whether a Parquet or Arrow table is too large to be read as a whole."""
    import pyarrow
    import pyarrow.parquet

    if not is_readable_in_parts(path) or not path.exists():
        return False
    size = 0
    for file in _list_files(path):
        if infer_format(file) != "parquet":
            size += file.stat().st_size
            continue
        try:
            with pyarrow.parquet.ParquetFile(file) as table:
                groups = range(table.num_row_groups)
                size += sum(table.metadata.row_group(each).total_byte_size for each in groups)
        except pyarrow.ArrowException:
            return False  # the reader of whole tables explains it
    return size > max_table_bytes()


def is_readable_in_parts(path: Path) -> bool:
    """Return whether a path is a table that `TableParts` reads: typed, and not compressed whole."""
    return path.is_dir() or path.suffix in (".parquet", ".arrow", ".feather")


def _list_files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: expected a folder with .parquet files, got none")
    if not files[0].is_file():
        raise UserError(f"{path}: expected a file, got none")
    if not is_readable_in_parts(files[0]) or infer_format(files[0]) not in ("parquet", "arrow"):
        raise UserError(
            f"{path}: expected a .parquet or .arrow file to read in parts, got another; convert "
            "it, for example with polars: scan_csv(...).sink_parquet(...)"
        )
    return files


def _count_rows(file: Path) -> Iterator[tuple[int, int]]:
    """Yield the index and the number of rows of every row group or record batch."""
    import pyarrow.parquet

    if infer_format(file) == "parquet":
        with pyarrow.parquet.ParquetFile(file) as table:
            for index in range(table.num_row_groups):
                yield index, table.metadata.row_group(index).num_rows
        return
    with _open_arrow(file) as reader:
        for index in range(reader.num_record_batches):
            yield index, reader.get_batch(index).num_rows


def _read_piece(file: Path, index: int, columns: list[str]) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    if infer_format(file) == "parquet":
        with pyarrow.parquet.ParquetFile(file) as table:
            yield from table.iter_batches(
                batch_size=PART_ROWS, row_groups=[index], columns=columns, use_threads=False
            )
        return
    with _open_arrow(file) as reader:
        batch = reader.get_batch(index).select(columns)
    for start in range(0, batch.num_rows, PART_ROWS):
        yield pyarrow.RecordBatch.from_struct_array(batch.slice(start, PART_ROWS).to_struct_array())


def _open_arrow(file: Path) -> Any:
    import pyarrow.ipc

    return pyarrow.ipc.open_file(pyarrow.memory_map(str(file)))


def _column_names(file: Path) -> list[str]:
    import pyarrow.parquet

    if infer_format(file) == "parquet":
        names = pyarrow.parquet.read_schema(file).names
    else:
        with _open_arrow(file) as reader:
            names = reader.schema.names
    duplicates = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if duplicates:
        raise UserError(f"{file}: expected unique column names, got {duplicates[0]!r} twice")
    return list(names)
