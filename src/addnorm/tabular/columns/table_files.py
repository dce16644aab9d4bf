"""Tables on disk as frames: CSV, TSV, Parquet and Arrow, packed or not."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.data.readers.streams import opened
from addnorm.data.readers.tables import format_of

ABSENT = ("", "?", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "-nan", "<NA>", "#N/A")
"""What a cell of CSV says where there is nothing."""
BLOCK = 1 << 24
"""Bytes that are read at once."""
ROWS = 1 << 14
"""Rows of a frame at most, where a table is read in parts."""
READABLE = ("csv", "tsv", "parquet", "arrow")
TEXTUAL = ("csv", "tsv")
SAMPLE, LINES = 1 << 16, 200
"""Bytes of a line at most, and lines, from which is found what stands between cells."""
SEPARATORS = (",", ";", "\t", "|")
COMMA = re.compile(rb"(?:^|[;\t|\n])\"?[+-]?\d+,\d+\"?(?=[;\t|\r\n]|$)")
"""A number with a decimal comma in a cell of its own."""


def read_table(
    path: str | Path, types: Mapping[str, str] | None = None
) -> tuple[Any, dict[str, str]]:
    """The whole table as a pandas frame, and the type of every column where the file has none.

    types: those of some columns of CSV, else as they look
    """
    import pyarrow
    import pyarrow.csv

    path, found = Path(path), dict[str, str]()
    with _told(path), opened(path) as file:
        if _kind(path) in TEXTUAL:
            table = pyarrow.csv.read_csv(file, **_options(path, dict(types or {})))
            _check(path, table)
            found = {field.name: str(field.type) for field in table.schema}
        else:
            batches = list(_batches(path, file, {}))
            table = pyarrow.Table.from_batches(batches) if batches else pyarrow.table({})
            _check(path, table)
    if not len(table):
        raise _no_rows(path)
    return _frame(table), found


def read_parts(path: str | Path, types: Mapping[str, str] | None = None) -> Iterator[Any]:
    """The table as pandas frames, one after the other, so that none needs much memory."""
    import pyarrow

    path, rows = Path(path), 0
    with _told(path), opened(path) as file:
        for batch in _batches(path, file, dict(types or {})):
            table = pyarrow.Table.from_batches([batch])
            _check(path, table)
            for start in range(0, len(table), ROWS):
                part = table.slice(start, ROWS)
                rows += len(part)
                yield _frame(part)
    if not rows:
        raise _no_rows(path)


def _frame(table: Any) -> Any:
    """In pandas; an index that was saved under a name is a column, and one without is none."""
    frame = table.to_pandas(date_as_object=False).rename(columns=str)
    named = [name for name in frame.index.names if name is not None]
    frame = frame.reset_index(level=named) if named else frame
    return frame.reset_index(drop=True).rename(columns=str)


def _kind(path: Path) -> str:
    kind = format_of(path)
    if kind not in READABLE:
        raise UserError(f"{path} is {kind}; wanted a table in {', '.join(READABLE)}")
    return kind


def _no_rows(path: Path) -> UserError:
    return UserError(f"{path} is no table: it has no rows; wanted a header and rows below it")


def _batches(path: Path, file: Any, types: dict[str, str]) -> Iterator[Any]:
    import pyarrow.csv
    import pyarrow.ipc
    import pyarrow.parquet

    kind = _kind(path)
    if kind == "parquet":
        yield from pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=ROWS)
    elif kind == "arrow":
        try:
            with pyarrow.ipc.open_file(file) as reader:
                yield from (reader.get_batch(place) for place in range(reader.num_record_batches))
        except pyarrow.ArrowInvalid:
            file.seek(0)
            yield from pyarrow.ipc.open_stream(file)
    else:
        yield from pyarrow.csv.open_csv(file, **_options(path, types))


def _options(path: Path, types: dict[str, str]) -> dict[str, Any]:
    """How CSV is to be read: what stands between cells, decimal commas, types of columns."""
    import pyarrow.csv

    with opened(path) as file:
        start = b"".join(islice(iter(lambda: file.readline(SAMPLE), b""), LINES))
    head = re.sub(r'"[^"]*"', "", start.split(b"\n", 1)[0].decode("utf-8", "replace"))
    usual = "\t" if _kind(path) == "tsv" else ","
    between = max(SEPARATORS, key=lambda each: (head.count(each), each == usual))
    comma = between != "," and COMMA.search(start) is not None
    return {
        "read_options": pyarrow.csv.ReadOptions(block_size=BLOCK),
        "parse_options": pyarrow.csv.ParseOptions(
            delimiter=between if head.count(between) else usual, newlines_in_values=True
        ),
        "convert_options": pyarrow.csv.ConvertOptions(
            null_values=list(ABSENT),
            strings_can_be_null=True,
            decimal_point="," if comma else ".",
            column_types={name: _type(each) for name, each in types.items()},
        ),
    }


def _type(name: str) -> Any:
    """An Arrow type by the name it gives itself; whole numbers, days and seconds may have fractions
    next time.
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


def _check(path: Path, table: Any) -> None:
    import pyarrow

    names = [str(name) for name in table.column_names]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise UserError(f"{path} has several columns called {twice[0]!r}; give each a name")
    for field in table.schema:
        if pyarrow.types.is_binary(field.type):
            raise UserError(f"{path}: column {field.name!r} is no UTF-8 text; convert it first")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What Arrow has to say of a file that is no table, in one line."""
    import pyarrow

    try:
        yield
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8 text; convert it first") from None
    except pyarrow.ArrowException as problem:
        said = " ".join(str(problem).split())[:200]
        if "conversion error to" in said:
            raise UserError(f"{path}: a cell is not what its column is ({said})") from None
        raise UserError(f"{path} is no table ({said}); wanted a header and rows below it") from None
