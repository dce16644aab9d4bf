"""Rows of tables: TSV, CSV, JSON lines, Parquet and folders saved by Hugging Face `datasets`."""

import csv
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.parsing import parse_json
from addnorm.data.readers.text_lines import MAX_CHARACTERS, Line, read_lines

FORMATS = {
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    ".csv": "csv",
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".arrow": "arrow",
}
COMPRESSED_SUFFIXES = (".gz", ".xz")
MAX_BATCH_ROWS = 1024
"""Rows of a Parquet file in memory at a time."""
MAX_BATCH_BYTES = 1 << 26
"""Bytes of rows that are converted at a time."""
MAX_CHUNK_BYTES = 1 << 31
"""Largest size of a column in a row group of a Parquet file, uncompressed."""
MAX_SHOWN_COLUMNS = 20
"""Columns of a table that a message lists."""
SPLIT_NAMES = {
    "train": ("train",),
    "valid": ("valid", "validation", "val", "dev"),
    "test": ("test",),
}


@dataclass(frozen=True)
class Row:
    """A row: its values by column, or the reason why it is dropped."""

    location: str
    values: Mapping[str, Any]
    error: str = ""


def read_rows(
    path: str | Path, *, format: str | None = None, header: bool = True, names: Sequence[str] = ()
) -> Iterator[Row]:
    """Return an iterator over the rows of a file.

    Args:
        path: the file
        format: tsv, csv, jsonl, parquet or arrow; inferred from the file name by default
        header: whether the first line of TSV and CSV names the columns; else they are 0, 1, ...
        names: columns that must exist
    """
    path = Path(path)
    kind = format or infer_format(path)
    if kind not in set(FORMATS.values()):
        raise UserError(unknown_name_message("format", kind, dict.fromkeys(FORMATS.values())))
    readers: dict[str, Callable[[], Iterator[Row]]] = {
        "tsv": lambda: _parse_rows(_read_tsv(path), path, header=header, names=names),
        "csv": lambda: _parse_rows(_read_csv(path), path, header=header, names=names),
        "jsonl": lambda: _read_jsonl(path),
        "parquet": lambda: _read_parquet(path, names),
        "arrow": lambda: _read_arrow(path, names),
    }
    return readers[kind]()


def infer_format(path: Path) -> str:
    """Return the format of a file name."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    last = next((suffix for suffix in reversed(suffixes) if suffix not in COMPRESSED_SUFFIXES), "")
    if last not in FORMATS:
        raise UserError(
            f"{path}: expected a name that ends in {', '.join(FORMATS)}, also with .gz or .xz; use "
            "--format for other names"
        )
    return FORMATS[last]


def find_split_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split: saved by `datasets`, or named train, valid and test."""
    candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    splits: dict[str, list[Path]] = {}
    for candidate in candidates:
        if (candidate / "state.json").is_file():
            split = "train" if candidate == folder else _infer_split(candidate.name)
            splits.setdefault(split, []).extend(_list_dataset_files(candidate))
    if not splits:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.startswith(".") and _has_known_format(path):
                splits.setdefault(_infer_split(path.name), []).append(path)
    splits.pop("", None)
    if "train" not in splits:
        raise UserError(
            f"{folder}: expected a folder saved by `datasets` (with a state.json), or one with "
            "tables such as train.jsonl, valid.jsonl and test.jsonl"
        )
    return splits


def read_class_names(path: Path, column: str) -> list[str]:
    """Return the class names that `datasets` stores for a column of indices; empty without any."""
    try:
        info = parse_json((path.parent / "dataset_info.json").read_bytes(), nonfinite=True)
        feature = info["features"][column]
        return list(map(str, feature["names"])) if feature["_type"] == "ClassLabel" else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _read_tsv(path: Path) -> Iterator[tuple[Line, list[str]]]:
    for line in read_lines(path):
        yield line, line.text.split("\t")


def _read_csv(path: Path) -> Iterator[tuple[Line, list[str]]]:
    """Yield the rows of CSV; a quoted cell may span several lines."""
    lines: list[Line] = []  # of the current row

    def texts() -> Iterator[str]:
        for line in read_lines(path):
            lines.append(line)
            if line.is_truncated:  # the end of its quotes is unknown, and so is the next row
                raise UserError(f"{path}, line {line.number}: not CSV, the line is too long")
            yield f"{line.text}\n"

    before = csv.field_size_limit(MAX_CHARACTERS)
    try:
        reader = csv.reader(texts())
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as problem:
                last = lines[-1].number if lines else 0
                raise UserError(
                    f"{path}, line {last}: not CSV ({str(problem).partition(' - ')[0]}); use "
                    "--format for another format"
                ) from None
            first, valid = lines[0], all(line.is_valid for line in lines)
            lines.clear()
            yield Line(first.number, "".join(cells), valid), cells
    finally:
        csv.field_size_limit(before)


def _parse_rows(
    rows: Iterator[tuple[Line, list[str]]], path: Path, *, header: bool, names: Sequence[str]
) -> Iterator[Row]:
    columns: list[str] = []
    for line, cells in rows:
        if not columns:
            columns = cells if header else list(map(str, range(len(cells))))
            check_columns(path, columns, names, header=header)
            if header:
                continue
        blank = not line.text.strip()
        flaw = (
            ("too long" if line.is_truncated else "")
            or ("empty" if blank else "")
            or ("other number of columns" if len(cells) != len(columns) else "")
        )
        yield Row(
            f"line {line.number}", {} if flaw else dict(zip(columns, cells, strict=True)), flaw
        )


def has_column(columns: Collection[str], name: str) -> bool:
    """Return whether a column exists; of a name with dots, the part before the first dot."""
    return name in columns or name.split(".")[0] in columns


def check_columns(
    path: Path, columns: Sequence[str], names: Sequence[str], *, header: bool = False
) -> None:
    """Raise UserError for a table without one of the columns.

    Args:
        path: the file
        columns: columns of the table
        names: required columns
        header: whether the columns were read from a header line
    """
    for name in names:
        if not has_column(columns, name):
            shown = [
                column if len(column) <= 40 else f"{column[:37]}..."
                for column in columns[:MAX_SHOWN_COLUMNS]
            ]
            hint = "; a file without a header has columns 0, 1, ..." if header else ""
            raise UserError(f"{path}: {unknown_name_message('column', name, shown)}{hint}")


def _read_jsonl(path: Path) -> Iterator[Row]:
    for line in read_lines(path):
        flaw, values = "", None
        if line.is_truncated:
            flaw = "too long"
        elif not line.text.strip():
            flaw = "empty"
        else:
            try:
                values = json.loads(line.text)
            except (ValueError, RecursionError):
                flaw = "not JSON"
        if line.number == 1 and line.text.lstrip().startswith("["):
            raise UserError(
                f"{path}: expected JSON lines, one object per line, got a list; try jq -c '.[]'"
            )
        if not flaw and not isinstance(values, dict):
            flaw = "not a JSON object"
        yield Row(f"line {line.number}", values if isinstance(values, dict) else {}, flaw)


def _read_parquet(path: Path, names: Sequence[str]) -> Iterator[Row]:
    parquet = _import_pyarrow("pyarrow.parquet", path)
    arrow = _import_pyarrow("pyarrow", path)
    try:
        with parquet.ParquetFile(path) as file:
            texts = _check_parquet(file, path, names)
        # A short file may repeat one long text a million times. Read as references to a
        # dictionary, it needs as little memory as on disk.
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            columns = _top_columns(file.schema_arrow.names, names)
            batches = file.iter_batches(batch_size=MAX_BATCH_ROWS, columns=columns)
            yield from _iter_batch_rows(batches, path, names)
    except (arrow.ArrowException, OSError) as problem:
        raise UserError(f"{path} cannot be read as Parquet: {problem}") from None


def _check_parquet(file: Any, path: Path, names: Sequence[str]) -> list[str]:
    """Return the text columns to read; raise `UserError` if a part of one needs too much memory."""
    check_columns(path, file.schema_arrow.names, names)
    columns, texts = _top_columns(file.schema_arrow.names, names), set()
    for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema.split(".")[0] not in columns:
                continue
            if chunk.total_uncompressed_size > MAX_CHUNK_BYTES:
                raise UserError(
                    f"{path}: expected at most {MAX_CHUNK_BYTES >> 20:,} MB of column "
                    f"{chunk.path_in_schema!r} in a row group, got "
                    f"{chunk.total_uncompressed_size >> 20:,} MB; write it with smaller row groups"
                )
            if chunk.physical_type == "BYTE_ARRAY":
                texts.add(chunk.path_in_schema)
    return sorted(texts)


def _top_columns(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns of a table that hold the named ones; `a.b` is in a."""
    return list(dict.fromkeys(name if name in columns else name.split(".")[0] for name in names))


def _read_arrow(path: Path, names: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a file of `datasets`, which is in Arrow's stream format."""
    arrow = _import_pyarrow("pyarrow", path)
    try:
        with arrow.memory_map(str(path)) as source, arrow.ipc.open_stream(source) as batches:
            yield from _iter_batch_rows(batches, path, names)
    except (arrow.ArrowException, OSError) as problem:
        raise UserError(f"{path} cannot be read as an Arrow stream: {problem}") from None


def _iter_batch_rows(batches: Any, path: Path, names: Sequence[str]) -> Iterator[Row]:
    number = 0
    for batch in batches:
        check_columns(path, batch.schema.names, names)
        columns = _top_columns(batch.schema.names, names)
        batch = batch.select(columns)
        # As Python objects, repeated texts do not share their memory: huge rows are converted one
        # at a time.
        is_small = sum(map(_expanded_bytes, batch.columns)) <= MAX_BATCH_BYTES
        for start in range(0, len(batch), len(batch) if is_small else 1):
            for values in batch.slice(start, None if is_small else 1).to_pylist():
                number += 1
                yield Row(f"row {number}", values)


def _expanded_bytes(column: Any) -> int:
    """Return the bytes of a column, with each text of a dictionary as often as it occurs."""
    import pyarrow
    import pyarrow.compute as compute

    if not pyarrow.types.is_dictionary(column.type) or not pyarrow.types.is_string(
        column.type.value_type
    ):
        return int(column.nbytes)
    lengths = compute.binary_length(column.dictionary).take(column.indices)
    return int(compute.sum(lengths).as_py() or 0)


def _import_pyarrow(module: str, path: Path) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise UserError(
            f"{path} requires pyarrow, which is not installed; try pip install 'addnorm[tabular]', "
            "or convert the table to JSON lines"
        ) from None


def _list_dataset_files(folder: Path) -> list[Path]:
    try:
        state = parse_json((folder / "state.json").read_bytes(), nonfinite=True)
        return [folder / str(file["filename"]) for file in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UserError(
            f"{folder / 'state.json'} cannot be read ({type(problem).__name__}: {problem}); "
            "expected a folder written by save_to_disk of `datasets`"
        ) from None


def _has_known_format(path: Path) -> bool:
    suffixes = [
        suffix.lower() for suffix in path.suffixes if suffix.lower() not in COMPRESSED_SUFFIXES
    ]
    return bool(suffixes) and suffixes[-1] in FORMATS


def _infer_split(name: str) -> str:
    """Return the split that a file or folder name begins with; empty for none."""
    start = name.lower().replace("-", ".").replace("_", ".").split(".")[0]
    return next((split for split, names in SPLIT_NAMES.items() if start in names), "")
