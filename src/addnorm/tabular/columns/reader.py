"""Reading of table columns with inferred or explicit types.

A table may be a pandas frame, any object with the Arrow stream interface (polars, pyarrow), or a
2-D NumPy array. Each column gets one of the types in `KINDS` and is converted to float64 (numbers,
datetimes) or to strings and None.
"""

import numbers
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.tabular.columns.column_conversion import RawColumn, format_value, to_raw_column
from addnorm.tabular.columns.text_parsing import (
    NUMBER_PATTERN,
    best_date_format,
    column_type_error,
    find_date_formats,
    parse_booleans,
    parse_datetimes,
    parse_numbers,
    remove_missing_texts,
)

KINDS = ("numeric", "boolean", "categorical", "string", "datetime")
MAX_CATEGORICAL_VALUES = 64
"""Largest number of distinct strings that always counts as categorical."""
MIN_ROWS_PER_CATEGORY = 8
"""Average rows per distinct string from which a column with more of them is categorical."""
MAX_OTHER_FRACTION = 0.2
"""Largest fraction of texts other than numbers in a column that was meant to be numeric."""


@dataclass(frozen=True)
class Column:
    """Parsed column of a table."""

    name: str
    kind: str
    """One of `KINDS`."""
    values: np.ndarray
    """(rows) float64 for numbers and datetimes (seconds since 1970), else strings and None."""
    date_format: str = ""
    """Format of datetimes that were read from texts, such as "ISO" or "%m/%d/%Y"."""
    missing_texts: Mapping[str, int] = field(default_factory=dict)
    """Number of rows of every spelling of a missing value, such as "?"."""
    failed_texts: Mapping[str, int] = field(default_factory=dict)
    """Number of rows of every text that could not be parsed and counts as missing."""
    other_texts: Mapping[str, int] = field(default_factory=dict)
    """Texts among numbers that made the column categorical or a string column."""
    other_formats: tuple[str, ...] = ()
    """Further formats that fit all dates, for example with day and month exchanged."""


def is_frame(X: Any) -> bool:
    """Return whether X has named columns: a pandas frame or an Arrow stream (polars, pyarrow)."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(X, pandas.DataFrame):
        return True
    return callable(getattr(type(X), "__arrow_c_stream__", None))


def to_pandas(X: Any) -> Any:
    """Convert a frame of any library to pandas through the Arrow stream interface."""
    import pandas

    if isinstance(X, pandas.DataFrame):
        return X
    import pyarrow

    try:
        return pyarrow.table(X).to_pandas(date_as_object=False)
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        if hasattr(X, "columns"):  # a table, but one column has a type unknown to Arrow
            reason = " ".join(str(error).split())
            raise UserError(
                f"X: expected types that Arrow supports, got a {type(X).__name__} that cannot be "
                f"converted: {reason}"
            ) from None
        raise UserError(
            f"Expected 2D array, got {type(X).__name__} instead, which has no columns; pass a "
            "frame with one column"
        ) from None


def reject_records(X: Any) -> None:
    """Raise `UserError` with advice for dicts, records and lazy frames."""
    if issparse(X):  # some sparse matrices are dicts; scikit-learn rejects all of them
        return
    if callable(getattr(X, "collect", None)):
        raise UserError(f"Expected 2D array, got {type(X).__name__} instead; call .collect() first")
    first = X[0] if isinstance(X, list) and X else X
    if isinstance(first, Mapping) or getattr(getattr(X, "dtype", None), "names", None):
        raise UserError(
            f"Expected 2D array, got {type(X).__name__} of named values instead; pass "
            "pandas.DataFrame(X)"
        )


def raw_columns(X: Any) -> list[tuple[str, Any]]:
    """Return (name, values) of every column of a pandas frame, a 2-D array or a sparse matrix."""
    if issparse(X):
        X = X.toarray()
    if isinstance(X, np.ndarray):
        return [(f"x{index}", X[:, index]) for index in range(X.shape[1])]
    return [(str(name), X.iloc[:, index]) for index, name in enumerate(X.columns)]


def read_columns(
    X: Any, kinds: Mapping[Any, str] | None = None, *, multiplicity: np.ndarray | None = None
) -> list[Column]:
    """Read every column of a table.

    Args:
        X: pandas frame or 2-D array
        kinds: explicit types by column name or position; the other types are inferred
        multiplicity: (rows) number of rows that each row represents; 1 if None

    >>> [column.kind for column in read_columns(np.array([[1.5, 2.0]]))]
    ['numeric', 'numeric']
    """
    raw = raw_columns(X)
    explicit = explicit_column_types([name for name, _ in raw], kinds)
    return [
        read_column(name, values, explicit.get(index), multiplicity=multiplicity)
        for index, (name, values) in enumerate(raw)
    ]


def explicit_column_types(names: Sequence[str], kinds: Any) -> dict[int, str]:
    """Validate explicit column types and return them by position."""
    if kinds is not None and not isinstance(kinds, Mapping):
        raise UserError(
            "column_types: expected a dict from column to type, such as "
            f"{{'zip': 'categorical'}}, got {kinds!r}"
        )
    explicit = dict[int, str]()
    for key, kind in (kinds or {}).items():
        if kind not in KINDS:
            raise UserError(unknown_name_message("column type", str(kind), KINDS))
        if names.count(str(key)) > 1:
            raise UserError(
                f"column_types: expected a unique column name, got {str(key)!r}, which several "
                "columns have; use positions"
            )
        if str(key) in names:
            explicit[names.index(str(key))] = kind
        elif isinstance(key, numbers.Integral) and 0 <= int(key) < len(names):
            explicit[int(key)] = kind
        else:
            raise UserError(unknown_name_message("column in column_types", str(key), names))
    return explicit


def read_column(
    name: str,
    values: Any,
    kind: str | None = None,
    *,
    multiplicity: np.ndarray | None = None,
    date_format: str = "",
    keep_texts: bool = False,
) -> Column:
    """Read one column.

    Args:
        name: name for error messages
        values: pandas series or 1-D array
        kind: type of the column; inferred if None
        multiplicity: (rows) number of rows that each row represents; 1 if None
        date_format: format of datetimes that are texts; inferred if empty
        keep_texts: keep spellings of missing values in a categorical column, such as "NA" for
            Namibia. A column with a categorical dtype keeps them anyway.
    """
    try:
        raw = to_raw_column(values, as_text=kind in ("categorical", "string"))
    except UserError as error:
        raise UserError(f"column {name!r}: {error}") from None
    missing = dict[str, int]()
    keeps = kind == "categorical" and keep_texts
    if raw.inferred_type == "text" and not keeps:
        texts, missing = remove_missing_texts(raw.values)
        raw = replace(raw, values=texts)
    column = Column(name, kind or "", raw.values, date_format, missing)
    if kind is None:
        column = _infer_column(column, raw, multiplicity)
    return _convert_column(column, raw)


def _infer_column(column: Column, raw: RawColumn, multiplicity: np.ndarray | None) -> Column:
    """Infer the type of a column from its values.

    Typed columns keep their type. A column of strings is

    - numeric if all strings are numbers, unless they are repeated integers (codes). Integers beside
      a spelling of a missing value, such as "?", are numbers: the column is text because of it;
    - datetime if all are dates in one format;
    - categorical if the strings are repeated, and string otherwise.
    """
    if raw.inferred_type != "text":
        return replace(column, kind=raw.inferred_type)
    present = raw.values != np.array(None)
    distinct = set(raw.values[present])
    rows = int(present.sum() if multiplicity is None else multiplicity[present].sum())
    is_repeated = len(distinct) <= max(MAX_CATEGORICAL_VALUES, rows // MIN_ROWS_PER_CATEGORY)
    matches = {text: NUMBER_PATTERN.fullmatch(text) for text in distinct}
    has_fractions = any(match and any(match.groups()) for match in matches.values())
    if all(matches.values()) and (has_fractions or not is_repeated or column.missing_texts):
        return replace(column, kind="numeric")
    if formats := find_date_formats(distinct):
        return replace(
            column, kind="datetime", date_format=formats[0], other_formats=tuple(formats[1:])
        )
    others = {text: 0 for text, match in matches.items() if not match}
    if 0 < len(others) <= MAX_OTHER_FRACTION * len(distinct):
        for text in raw.values[present]:
            if text in others:
                others[text] += 1
        column = replace(column, other_texts=others)
    return replace(column, kind="categorical" if is_repeated else "string")


def _convert_column(column: Column, raw: RawColumn) -> Column:
    """Convert raw values to the type of the column."""
    kind, name, values = column.kind, column.name, raw.values
    is_number = values.dtype == np.float64
    present = ~np.isnan(values) if is_number else values != np.array(None)
    if not present.any():  # an empty column may have any type
        empty = np.full(len(values), np.nan if kind in ("numeric", "datetime") else None)
        return replace(column, values=empty)
    if kind in ("numeric", "datetime"):
        if is_number:
            if (kind == "datetime") != (raw.inferred_type == "datetime"):
                raise column_type_error(name, kind, "datetimes" if kind == "numeric" else "numbers")
            return replace(column, values=values)
        if kind == "numeric":
            parsed = parse_numbers(values, name)
        else:
            date_format = column.date_format or best_date_format(set(values[present]))
            column = replace(column, date_format=date_format)
            parsed = parse_datetimes(values, name, date_format)
        return replace(column, values=parsed.values, failed_texts=parsed.failed)
    if kind == "boolean":
        if raw.inferred_type == "datetime":
            raise column_type_error(name, kind, "datetimes")
        texts = _map_present(values, format_value) if is_number else values
        parsed = parse_booleans(texts, name)
        return replace(column, values=parsed.values, failed_texts=parsed.failed)
    if is_number:
        formatters = {
            "datetime": lambda value: str(np.datetime64(int(value), "s")),
            "boolean": lambda value: str(bool(value)),
        }
        values = _map_present(values, formatters.get(raw.inferred_type, format_value))
    return replace(column, values=values)


def _map_present(values: np.ndarray, function: Any) -> np.ndarray:
    """Apply a function to each distinct value; NaN becomes None."""
    mapped = {value: function(value) for value in np.unique(values[~np.isnan(values)])}
    result = np.empty(len(values), dtype=object)
    result[:] = [mapped.get(value) for value in values]
    return result


def empty_columns(columns: Sequence[Column]) -> list[str]:
    """Return the names of columns without any value."""
    return [
        column.name
        for column in columns
        if not (
            (~np.isnan(column.values)).any()
            if column.values.dtype == np.float64
            else any(value is not None for value in column.values)
        )
    ]


def format_cell(column: Column, row: int) -> str:
    """Format a cell for display."""
    value = column.values[row]
    if value is None or value != value:
        return "absent"
    if column.kind == "datetime":
        return str(np.datetime64(int(value), "s"))
    return f"{value:g}" if column.kind == "numeric" else str(value)
