"""Tables on disk as frames: CSV, TSV, Parquet and Arrow, packed or not."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.data.readers.streams import open_text
from addnorm.data.readers.tables import infer_format

MISSING_VALUES = (
    "",
    "?",
    "NA",
    "N/A",
    "NaN",
    "nan",
    "NULL",
    "null",
    "None",
    "-nan",
    "<NA>",
    "#N/A",
)
"""What a cell of CSV says where there is nothing."""
BLOCK_BYTES = 1 << 24
"""Bytes that are read at once."""
MAX_FRAME_ROWS = 1 << 14
"""Rows of a frame at most, where a table is read in parts."""
SUPPORTED_FORMATS = ("csv", "tsv", "parquet", "arrow")
TEXT_FORMATS = ("csv", "tsv")
MAX_LINE_BYTES, MAX_SAMPLE_LINES = 1 << 16, 200
"""Bytes of a line at most, and lines, from which is found what stands between cells."""
SEPARATORS = (",", ";", "\t", "|")
DECIMAL_COMMA = re.compile(rb"(?:^|[;\t|\n])\"?[+-]?\d+,\d+\"?(?=[;\t|\r\n]|$)")
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
    with _arrow_errors(path), open_text(path) as file:
        if _table_format(path) in TEXT_FORMATS:
            table = pyarrow.csv.read_csv(file, **_csv_options(path, dict(types or {})))
            _check_columns(path, table)
            found = {field.name: str(field.type) for field in table.schema}
        else:
            batches = list(_read_batches(path, file, {}))
            table = pyarrow.Table.from_batches(batches) if batches else pyarrow.table({})
            _check_columns(path, table)
    if not len(table):
        raise _empty_table_error(path)
    return _to_frame(table), found


def read_table_chunks(path: str | Path, types: Mapping[str, str] | None = None) -> Iterator[Any]:
    """The table as pandas frames, one after the other, so that none needs much memory."""
    import pyarrow

    path, rows = Path(path), 0
    with _arrow_errors(path), open_text(path) as file:
        for batch in _read_batches(path, file, dict(types or {})):
            table = pyarrow.Table.from_batches([batch])
            _check_columns(path, table)
            for start in range(0, len(table), MAX_FRAME_ROWS):
                part = table.slice(start, MAX_FRAME_ROWS)
                rows += len(part)
                yield _to_frame(part)
    if not rows:
        raise _empty_table_error(path)


def _to_frame(table: Any) -> Any:
    """In pandas; an index that was saved under a name is a column, and one without is none."""
    frame = table.to_pandas(date_as_object=False).rename(columns=str)
    named = [name for name in frame.index.names if name is not None]
    frame = frame.reset_index(level=named) if named else frame
    return frame.reset_index(drop=True).rename(columns=str)


def _table_format(path: Path) -> str:
    kind = infer_format(path)
    if kind not in SUPPORTED_FORMATS:
        raise UserError(f"{path} is {kind}; wanted a table in {', '.join(SUPPORTED_FORMATS)}")
    return kind


def _empty_table_error(path: Path) -> UserError:
    return UserError(f"{path} is no table: it has no rows; wanted a header and rows below it")


def _read_batches(path: Path, file: Any, types: dict[str, str]) -> Iterator[Any]:
    import pyarrow.csv
    import pyarrow.ipc
    import pyarrow.parquet

    kind = _table_format(path)
    if kind == "parquet":
        yield from pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=MAX_FRAME_ROWS)
    elif kind == "arrow":
        try:
            with pyarrow.ipc.open_file(file) as reader:
                yield from (reader.get_batch(place) for place in range(reader.num_record_batches))
        except pyarrow.ArrowInvalid:
            file.seek(0)
            yield from pyarrow.ipc.open_stream(file)
    else:
        yield from pyarrow.csv.open_csv(file, **_csv_options(path, types))


def _csv_options(path: Path, types: dict[str, str]) -> dict[str, Any]:
    """How CSV is to be read: what stands between cells, decimal commas, types of columns."""
    import pyarrow.csv

    with open_text(path) as file:
        start = b"".join(islice(iter(lambda: file.readline(MAX_LINE_BYTES), b""), MAX_SAMPLE_LINES))
    head = re.sub(r'"[^"]*"', "", start.split(b"\n", 1)[0].decode("utf-8", "replace"))
    usual = "\t" if _table_format(path) == "tsv" else ","
    between = max(SEPARATORS, key=lambda each: (head.count(each), each == usual))
    comma = between != "," and DECIMAL_COMMA.search(start) is not None
    return {
        "read_options": pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES),
        "parse_options": pyarrow.csv.ParseOptions(
            delimiter=between if head.count(between) else usual, newlines_in_values=True
        ),
        "convert_options": pyarrow.csv.ConvertOptions(
            null_values=list(MISSING_VALUES),
            strings_can_be_null=True,
            decimal_point="," if comma else ".",
            column_types={name: _arrow_type(each) for name, each in types.items()},
        ),
    }


def _arrow_type(name: str) -> Any:
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


def _check_columns(path: Path, table: Any) -> None:
    import pyarrow

    names = [str(name) for name in table.column_names]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise UserError(f"{path} has several columns called {twice[0]!r}; give each a name")
    for field in table.schema:
        if pyarrow.types.is_binary(field.type):
            raise UserError(f"{path}: column {field.name!r} is no UTF-8 text; convert it first")


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
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
