"""Tables on disk as frames: CSV, TSV, Parquet and Arrow, packed or not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.data.sources import opened
from addnorm.data.tables import format_of

ABSENT = ("", "?", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "-nan", "<NA>", "#N/A")
"""What a cell of CSV says where there is nothing."""
BLOCK = 1 << 24
"""Bytes that are read at once."""
ROWS = 1 << 14
"""Rows of a frame at most, where a table is read in parts."""
READABLE = ("csv", "tsv", "parquet", "arrow")


def read_table(path: str | Path) -> Any:
    """The whole table as a pandas frame; types of columns as they look."""
    import pandas

    frames = list(read_parts(path))
    # Parts of one file have the types of its first.
    return frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)


def read_parts(path: str | Path) -> Iterator[Any]:
    """The table as pandas frames, one after the other, so that none needs much memory."""
    import pyarrow

    path = Path(path)
    kind = format_of(path)
    if kind not in READABLE:
        raise UserError(f"{path} is {kind}; wanted a table in {', '.join(READABLE)}")
    rows = 0
    with _told(path), opened(path) as file:
        for batch in _batches(kind, file):
            table = pyarrow.Table.from_batches([batch])
            _check(path, table)
            for start in range(0, len(table), ROWS):
                part = table.slice(start, ROWS)
                rows += len(part)
                yield part.to_pandas(date_as_object=False)
    if not rows:
        raise UserError(f"{path} is no table: it has no rows; wanted a header and rows below it")


def _batches(kind: str, file: Any) -> Iterator[Any]:
    import pyarrow.csv
    import pyarrow.ipc
    import pyarrow.parquet

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
        yield from pyarrow.csv.open_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(block_size=BLOCK),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter="\t" if kind == "tsv" else ",", newlines_in_values=True
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                null_values=list(ABSENT), strings_can_be_null=True
            ),
        )


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
    except pyarrow.ArrowException as problem:
        said = " ".join(str(problem).split())[:200]
        raise UserError(f"{path} is no table ({said}); wanted a header and rows below it") from None
