"""Reading of table columns with inferred or explicit types.

A table may be a pandas frame, any object with the Arrow stream interface (polars, pyarrow), or a
2-D NumPy array. Each column gets one of the types in `KINDS` and is converted to float64 (numbers,
datetimes) or to strings and None.
"""

import numbers
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from scipy.sparse import issparse

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.tabular.columns.column_conversion import (
    RawColumn,
    format_value,
    to_epoch_seconds,
    to_raw_column,
)

KINDS = ("numeric", "boolean", "categorical", "string", "datetime")
MAX_CATEGORICAL_VALUES = 64
"""Largest number of distinct strings that always counts as categorical."""
MIN_ROWS_PER_CATEGORY = 8
"""Average rows per distinct string from which a column with more of them is categorical."""
NUMBER_PATTERN = re.compile(r"\s*[+-]?(?:0|[1-9]\d*|(?=\.\d))(\.\d*)?([eE][+-]?\d+)?\s*")
"""A number written as text; leading zeros, as in 007, mark an identifier instead."""
DATETIME_PATTERN = re.compile(r"\s*\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?\s*")
BOOLEAN_VALUES = {"true": "True", "false": "False", "1": "True", "0": "False"}


@dataclass(frozen=True)
class Column:
    """Parsed column of a table."""

    name: str
    kind: str
    """One of `KINDS`."""
    values: np.ndarray
    """(rows) float64 for numbers and datetimes (seconds since 1970), else strings and None."""


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
    """Return (name, values) of every column of a pandas frame or a 2-D array."""
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
    name: str, values: Any, kind: str | None = None, *, multiplicity: np.ndarray | None = None
) -> Column:
    """Read one column; infer its type if `kind` is None."""
    raw = to_raw_column(values, as_text=kind in ("categorical", "string"))
    kind = kind or infer_column_type(raw, multiplicity)
    return Column(name, kind, _convert_values(kind, raw, name))


def infer_column_type(column: RawColumn, multiplicity: np.ndarray | None = None) -> str:
    """Infer the type of a column from its values.

    Typed columns keep their type. A column of strings is

    - numeric if all strings are numbers, unless they are repeated integers (codes);
    - datetime if all are dates in ISO format;
    - categorical if the strings are repeated, and string otherwise.
    """
    if column.inferred_type != "text":
        return column.inferred_type
    present = np.array([text is not None for text in column.values])
    distinct = set(column.values[present])
    rows = int(present.sum() if multiplicity is None else multiplicity[present].sum())
    is_repeated = len(distinct) <= max(MAX_CATEGORICAL_VALUES, rows // MIN_ROWS_PER_CATEGORY)
    matches = [NUMBER_PATTERN.fullmatch(text) for text in distinct]
    has_fractions = any(match and any(match.groups()) for match in matches)
    if all(matches) and (has_fractions or not is_repeated):
        return "numeric"
    if all(DATETIME_PATTERN.fullmatch(text) and _parse_datetime(text) for text in distinct):
        return "datetime"
    return "categorical" if is_repeated else "string"


def _convert_values(kind: str, column: RawColumn, name: str) -> np.ndarray:
    values, is_number = column.values, column.values.dtype == np.float64
    present = ~np.isnan(values) if is_number else np.array([text is not None for text in values])
    if not present.any():  # an empty column may have any type
        return np.full(len(values), np.nan if kind in ("numeric", "datetime") else None)
    if kind in ("numeric", "datetime"):
        if is_number:
            if (kind == "datetime") != (column.inferred_type == "datetime"):
                raise _column_type_error(
                    name, kind, "datetimes" if kind == "numeric" else "numbers"
                )
            return values
        return _parse_numbers(values, name) if kind == "numeric" else _parse_datetimes(values, name)
    if kind == "boolean":
        return _parse_booleans(values, column.inferred_type, name)
    if not is_number:
        return values
    if column.inferred_type == "datetime":
        return _map_present(values, lambda value: str(np.datetime64(int(value), "s")))
    return _map_present(
        values,
        lambda value: (
            str(bool(value)) if column.inferred_type == "boolean" else format_value(value)
        ),
    )


def _column_type_error(name: str, kind: str, actual: str) -> UserError:
    return UserError(
        f"column {name!r}: expected {kind} values, got {actual}; convert the column or set its "
        "type in column_types at fit"
    )


def _map_present(values: np.ndarray, function: Any) -> np.ndarray:
    """Apply a function to each distinct value; NaN becomes None."""
    mapped = {value: function(value) for value in np.unique(values[~np.isnan(values)])}
    result = np.empty(len(values), dtype=object)
    result[:] = [mapped.get(value) for value in values]
    return result


def _parse_booleans(values: np.ndarray, inferred_type: str, name: str) -> np.ndarray:
    texts = values if values.dtype == object else _map_present(values, format_value)
    booleans = np.empty(len(values), dtype=object)
    for row, text in enumerate(texts):
        if text is not None:
            booleans[row] = (
                BOOLEAN_VALUES.get(text.strip().lower()) if inferred_type != "datetime" else None
            )
            if booleans[row] is None:
                raise _column_type_error(name, "boolean", f"{text!r}")
    return booleans


def _parse_numbers(texts: np.ndarray, name: str) -> np.ndarray:
    parsed = np.full(len(texts), np.nan)
    for row, text in enumerate(texts):
        if text is not None:
            try:
                parsed[row] = float(text)
            except ValueError:
                raise _column_type_error(name, "numeric", f"{text!r}") from None
    return np.where(np.isfinite(parsed), parsed, np.nan) + 0.0  # + 0.0 turns -0.0 into 0.0


def _parse_datetimes(texts: np.ndarray, name: str) -> np.ndarray:
    datetimes = [None if text is None else _parse_datetime(text) for text in texts]
    for parsed, text in zip(datetimes, texts, strict=True):
        if parsed is None and text is not None:
            raise UserError(
                f"column {name!r}: expected datetimes in ISO format (2026-11-16 or "
                f"2026-11-16T08:00), got {text!r}"
            )
    return to_epoch_seconds(datetimes)


def _parse_datetime(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None


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
