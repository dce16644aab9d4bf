"""Table files as pandas frames: CSV, TSV, Parquet and Arrow, optionally compressed.

CSV files have no types and no standard dialect. The separator and the decimal comma are detected
from the first lines, and Arrow infers the column types. `read_table` returns these types, so that
`read_table_chunks` can parse later files of the same table in the same way. Cells that do not parse
stay texts, so that `reader.py` decides about them as it does for frames.
"""

import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.data.readers.tables import infer_format
from addnorm.data.readers.text_lines import open_text
from addnorm.tabular.columns.text_parsing import missing_text_spellings

BLOCK_BYTES = 1 << 24
"""Bytes per block of the CSV reader."""
MAX_FRAME_ROWS = 1 << 14
"""Rows per frame when a table is read in chunks."""
MEMORY_PER_TABLE_BYTE = 4
"""Bytes of memory per byte of a table; a short CSV cell becomes a number of 8 bytes."""
SUPPORTED_FORMATS = ("csv", "tsv", "parquet", "arrow")
TEXT_FORMATS = ("csv", "tsv")
MAX_LINE_BYTES, MAX_SAMPLE_LINES = 1 << 16, 200
"""Bytes per line, and lines, that are read to detect the separator and the decimal comma."""
LEADING_ZERO = r"^\s*[+-]?0\d"
"""An integer with a leading zero, which identifies something and counts nothing."""
SEPARATORS = (",", ";", "\t", "|")
DECIMAL_COMMA = re.compile(rb"(?:^|[;\t|\n])\"?[+-]?\d+,\d+\"?(?=[;\t|\r\n]|$)")
"""A cell that consists of a number with a decimal comma."""


def read_table(
    path: str | Path, types: Mapping[str, str] | None = None
) -> tuple[Any, dict[str, str]]:
    """Read a whole table.

    Args:
        path: file whose suffix names the format
        types: Arrow types of some CSV columns by name; the others are inferred

    Returns:
        The pandas frame, and the Arrow types of a CSV file by column (empty for typed formats).
    """
    import pyarrow
    import pyarrow.csv

    path, csv_types = Path(path), dict[str, str]()
    with _arrow_errors(path), open_text(path) as file:
        if _table_format(path) in TEXT_FORMATS:
            table = _read_csv(path, file, dict(types or {}))
            identifiers = _identifier_columns(path, table, dict(types or {}))
            if identifiers:
                with open_text(path) as again:
                    table = _read_csv(path, again, {**(types or {}), **identifiers})
            csv_types = {field.name: str(field.type) for field in table.schema}
        else:
            batches, size = [], 0
            for batch in _read_batches(path, file, {}):
                batches.append(batch)
                size += batch.nbytes
                _check_size(path, size)
            table = pyarrow.Table.from_batches(batches) if batches else pyarrow.table({})
            _check_columns(path, table)
    if not len(table):
        raise _empty_table_error(path)
    return _to_frame(table), csv_types


def read_table_chunks(path: str | Path, types: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Yield a table as pandas frames of at most `MAX_FRAME_ROWS` rows, to bound memory.

    A CSV column without a type, or with a cell that does not have it, is read as texts.

    types: Arrow types of CSV columns by name, as returned by `read_table`
    """
    import pyarrow
    import pyarrow.csv

    path, rows = Path(path), 0
    is_text = _table_format(path) in TEXT_FORMATS
    with _arrow_errors(path), open_text(path) as file:
        texts, decimal_comma = dict[str, str](), False
        if is_text:
            with open_text(path) as header:
                options = _csv_options(path, {})
                names = pyarrow.csv.open_csv(header, **options).schema.names
                texts = dict.fromkeys(names, "string")
                decimal_comma = options["convert_options"].decimal_point == ","
        for batch in _read_batches(path, file, texts):
            table = pyarrow.Table.from_batches([batch])
            _check_columns(path, table)
            if is_text:
                table = _cast_columns(table, types or {}, decimal_comma=decimal_comma)
            for start in range(0, len(table), MAX_FRAME_ROWS):
                chunk = table.slice(start, MAX_FRAME_ROWS)
                rows += len(chunk)
                yield _to_frame(chunk)
    if not rows:
        raise _empty_table_error(path)


def _read_csv(path: Path, file: Any, types: dict[str, str]) -> Any:
    import pyarrow.csv

    table = pyarrow.csv.read_csv(_LimitedReader(path, file), **_csv_options(path, types))
    _check_columns(path, table)
    return table


def _identifier_columns(path: Path, table: Any, types: dict[str, str]) -> dict[str, str]:
    """Return the columns of integers with leading zeros, such as 007, with the type "string"."""
    import pyarrow
    import pyarrow.compute
    import pyarrow.csv

    names = [
        field.name
        for field in table.schema
        if pyarrow.types.is_integer(field.type) and field.name not in types
    ]
    found = dict[str, str]()
    if not names:
        return found
    options = _csv_options(path, dict.fromkeys(names, "string"))
    options["convert_options"].include_columns = names
    with open_text(path) as file:
        for batch in pyarrow.csv.open_csv(file, **options):
            for name in [each for each in names if each not in found]:
                texts = batch.column(name)
                if pyarrow.compute.any(
                    pyarrow.compute.match_substring_regex(texts, LEADING_ZERO)
                ).as_py():
                    found[name] = "string"
    return found


def _cast_columns(table: Any, types: Mapping[str, str], *, decimal_comma: bool) -> Any:
    """Parse the texts of a chunk with the types of the fit; keep a column that does not parse."""
    import pyarrow
    import pyarrow.compute as pc

    missing = pyarrow.array(missing_text_spellings())
    for index, name in enumerate(table.column_names):
        arrow_type = _arrow_type(types.get(name, "string"))
        if pyarrow.types.is_string(arrow_type):
            continue
        texts = pc.utf8_trim_whitespace(table.column(index))
        texts = pc.if_else(pc.is_in(texts, missing), None, texts)
        if decimal_comma and pyarrow.types.is_floating(arrow_type):
            texts = pc.replace_substring(texts, ",", ".")
        with suppress(pyarrow.ArrowInvalid):
            if pyarrow.types.is_time(arrow_type):  # Arrow parses times in timestamps only
                texts = pc.binary_join_element_wise("1970-01-01", texts, " ")
                texts = texts.cast(pyarrow.timestamp("us"))
            table = table.set_column(index, name, texts.cast(arrow_type))
    return table


class _LimitedReader(io.RawIOBase):
    """File that is read up to the limit of `_check_size`; a small compressed file may hold more."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self.file, self.size = path, file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.file.read(len(buffer))
        buffer[: len(data)] = data
        self.size += len(data)
        _check_size(self.path, self.size)
        return len(data)


def _check_size(path: Path, size: int) -> None:
    """Raise `UserError` if a table of this many bytes would not fit into memory."""
    limit = max_table_bytes()
    if size > limit:
        raise UserError(
            f"{path}: expected at most {limit >> 20:,} MB of table, 1 / {MEMORY_PER_TABLE_BYTE} of "
            "the memory of this machine, got more; use fewer rows or columns, or `addnorm fit` "
            "with a Parquet file, which it reads in parts"
        )


def max_table_bytes() -> int:
    """Return the largest size of a table that is read as a whole."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return memory // MEMORY_PER_TABLE_BYTE


def _to_frame(table: Any) -> Any:
    """Convert to pandas; a named index becomes a column, an unnamed one is dropped."""
    frame = table.to_pandas(date_as_object=False).rename(columns=str)
    named = [name for name in frame.index.names if name is not None]
    frame = frame.reset_index(level=named) if named else frame
    return frame.reset_index(drop=True).rename(columns=str)


def _table_format(path: Path) -> str:
    name = infer_format(path)
    if name not in SUPPORTED_FORMATS:
        raise UserError(f"{path}: expected one of {', '.join(SUPPORTED_FORMATS)}, got {name}")
    return name


def _empty_table_error(path: Path) -> UserError:
    return UserError(f"{path}: expected a header and at least one row, got no rows")


def _read_batches(path: Path, file: Any, types: dict[str, str]) -> Iterator[Any]:
    import pyarrow.csv
    import pyarrow.ipc
    import pyarrow.parquet

    name = _table_format(path)
    if name == "parquet":
        yield from pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=MAX_FRAME_ROWS)
    elif name == "arrow":
        try:
            with pyarrow.ipc.open_file(file) as reader:
                yield from (reader.get_batch(index) for index in range(reader.num_record_batches))
        except pyarrow.ArrowInvalid:  # the streaming format, which has no footer
            file.seek(0)
            yield from pyarrow.ipc.open_stream(file)
    else:
        yield from pyarrow.csv.open_csv(file, **_csv_options(path, types))


def _csv_options(path: Path, types: dict[str, str]) -> dict[str, Any]:
    """Detect the dialect of a CSV file and return the options of Arrow's reader."""
    import pyarrow.csv

    with open_text(path) as file:
        sample = b"".join(
            islice(iter(lambda: file.readline(MAX_LINE_BYTES), b""), MAX_SAMPLE_LINES)
        )
    # The separator is the most frequent candidate of the header, outside of quotes.
    header = re.sub(r'"[^"]*"', "", sample.split(b"\n", 1)[0].decode("utf-8", "replace"))
    default = "\t" if _table_format(path) == "tsv" else ","
    separator = max(SEPARATORS, key=lambda each: (header.count(each), each == default))
    decimal_comma = separator != "," and DECIMAL_COMMA.search(sample) is not None
    return {
        "read_options": pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES),
        "parse_options": pyarrow.csv.ParseOptions(
            delimiter=separator if header.count(separator) else default, newlines_in_values=True
        ),
        "convert_options": pyarrow.csv.ConvertOptions(
            null_values=missing_text_spellings(),
            strings_can_be_null=False,  # texts are read as in a frame, by `read_column`
            decimal_point="," if decimal_comma else ".",
            column_types={name: _arrow_type(each) for name, each in types.items()},
        ),
    }


def _arrow_type(name: str) -> Any:
    """Return the Arrow type to parse a column with, given the name of the inferred type.

    Types are widened, because a later file may have fractions in a column of integers, and times in
    a column of dates.
    """
    import pyarrow

    if name.startswith(("int", "double", "float")):
        return pyarrow.float64()
    if name.startswith(("timestamp", "date32")):
        zone = re.search(r"tz=(.*)\]", name)
        return pyarrow.timestamp("us", zone and zone[1])
    if name.startswith("time"):
        return pyarrow.time64("us")
    return pyarrow.bool_() if name == "bool" else pyarrow.string()


def _check_columns(path: Path, table: Any) -> None:
    import pyarrow

    names = [str(name) for name in table.column_names]
    duplicates = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if duplicates:
        raise UserError(
            f"{path}: expected unique column names, got {duplicates[0]!r} more than once; rename "
            "the columns"
        )
    for field in table.schema:
        if pyarrow.types.is_binary(field.type):
            raise UserError(
                f"{path}: expected UTF-8 text, got other bytes in column {field.name!r}; convert "
                "the file first"
            )


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    """Raise Arrow's errors as one-line `UserError`."""
    import pyarrow

    try:
        yield
    except UnicodeDecodeError:
        raise UserError(
            f"{path}: expected UTF-8 text, got other bytes; convert the file first"
        ) from None
    except pyarrow.ArrowException as error:
        reason = " ".join(str(error).split())[:200]
        if "invalid UTF8" in reason:
            raise UserError(
                f"{path}: expected UTF-8 text, got other bytes; convert the file first"
            ) from None
        if "conversion error to" in reason:
            raise UserError(
                f"{path}: expected the column types of the fit, got another value ({reason})"
            ) from None
        raise UserError(
            f"{path}: expected a table with a header and rows, got a file that cannot be parsed "
            f"({reason})"
        ) from None
