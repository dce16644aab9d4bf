"""Columns of any table, and what kind each is."""

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
from addnorm.tabular.columns.values import RawColumn, format_value, to_epoch_seconds, to_raw_column

KINDS = ("numeric", "boolean", "categorical", "string", "datetime")
MAX_CATEGORICAL_VALUES = 64
"""Different texts that are always taken for categories."""
MIN_ROWS_PER_CATEGORY = 8
"""Rows that a text must have on average to be taken for a category beyond that."""
NUMBER_PATTERN = re.compile(r"\s*[+-]?(?:0|[1-9]\d*|(?=\.\d))(\.\d*)?([eE][+-]?\d+)?\s*")
"""A number as a text; 007 is a name."""
DATETIME_PATTERN = re.compile(r"\s*\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?\s*")
BOOLEAN_VALUES = {"true": "True", "false": "False", "1": "True", "0": "False"}


@dataclass(frozen=True)
class Column:
    """One column, read."""

    name: str
    kind: str
    values: np.ndarray
    """float64 where numeric (datetimes are seconds since 1970), else text or None."""


def is_frame(X: Any) -> bool:
    """Whether it is a table with named columns: pandas, polars, Arrow, or what speaks Arrow."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(X, pandas.DataFrame):
        return True
    return callable(getattr(type(X), "__arrow_c_stream__", None))


def to_pandas(X: Any) -> Any:
    """A frame of whatever library as one of pandas, through Arrow."""
    import pandas

    if isinstance(X, pandas.DataFrame):
        return X
    import pyarrow

    try:
        return pyarrow.table(X).to_pandas(date_as_object=False)
    except (pyarrow.ArrowException, TypeError, ValueError) as problem:
        if hasattr(X, "columns"):  # a table, with a column that Arrow does not know
            said = " ".join(str(problem).split())
            raise UserError(f"{type(X).__name__} cannot be read through Arrow: {said}") from None
        raise UserError(
            f"Expected 2D array, got {type(X).__name__} instead, which is no table with columns; "
            "try a frame of one column"
        ) from None


def reject_records(X: Any) -> None:
    """What is nearly a table, and what to do."""
    if issparse(X):  # some are dicts; scikit-learn has words for all
        return
    if callable(getattr(X, "collect", None)):
        raise UserError(f"Expected 2D array, got {type(X).__name__} instead; call .collect() first")
    first = X[0] if isinstance(X, list) and X else X
    if isinstance(first, Mapping) or getattr(getattr(X, "dtype", None), "names", None):
        raise UserError(
            f"Expected 2D array, got {type(X).__name__} of named values instead; make it a frame: "
            "pandas.DataFrame(X)"
        )


def raw_columns(X: Any) -> list[tuple[str, Any]]:
    """(name, values) of every column of a pandas frame or a 2-d array."""
    if isinstance(X, np.ndarray):
        return [(f"x{index}", X[:, index]) for index in range(X.shape[1])]
    return [(str(name), X.iloc[:, index]) for index, name in enumerate(X.columns)]


def read_columns(
    X: Any, kinds: Mapping[Any, str] | None = None, *, multiplicity: np.ndarray | None = None
) -> list[Column]:
    """Every column with the kind that is told in `kinds`, by name or position, or found.

    times: how many rows each row stands for, if not for one

    >>> [column.kind for column in read_columns(np.array([[1.5, 2.0]]))]
    ['numeric', 'numeric']
    """
    raw = raw_columns(X)
    told = explicit_column_types([name for name, _ in raw], kinds)
    return [
        read_column(name, values, told.get(index), multiplicity=multiplicity)
        for index, (name, values) in enumerate(raw)
    ]


def explicit_column_types(names: Sequence[str], kinds: Any) -> dict[int, str]:
    """Kinds that are told, by position."""
    if kinds is not None and not isinstance(kinds, Mapping):
        raise UserError(
            f"column_types is a dict from columns to types, such as {{'zip': 'categorical'}}, got "
            f"{kinds!r}"
        )
    told = dict[int, str]()
    for key, kind in (kinds or {}).items():
        if kind not in KINDS:
            raise UserError(unknown_name_message("column type", str(kind), KINDS))
        if names.count(str(key)) > 1:
            raise UserError(f"column_types: several columns are called {str(key)!r}; say positions")
        if str(key) in names:
            told[names.index(str(key))] = kind
        elif isinstance(key, numbers.Integral) and 0 <= int(key) < len(names):
            told[int(key)] = kind
        else:
            raise UserError(unknown_name_message("column in column_types", str(key), names))
    return told


def read_column(
    name: str, values: Any, kind: str | None = None, *, multiplicity: np.ndarray | None = None
) -> Column:
    """One column; its kind is found if it is not told."""
    plain = to_raw_column(values, as_text=kind in ("categorical", "string"))
    kind = kind or infer_column_type(plain, multiplicity)
    return Column(name, kind, _convert_values(kind, plain, name))


def infer_column_type(column: RawColumn, multiplicity: np.ndarray | None = None) -> str:
    """What kind a column is by its looks.

    Texts that come back are categories, others free text; texts that are all moments are moments,
    and texts that are all numbers are numbers, but for whole ones that come back.
    """
    if column.inferred_type != "text":
        return column.inferred_type
    here = np.array([text is not None for text in column.values])
    different = set(column.values[here])
    present = int(here.sum() if multiplicity is None else multiplicity[here].sum())
    numeric = [NUMBER_PATTERN.fullmatch(text) for text in different]
    come_back = len(different) <= max(MAX_CATEGORICAL_VALUES, present // MIN_ROWS_PER_CATEGORY)
    if all(numeric) and not (
        come_back and not any(each and any(each.groups()) for each in numeric)
    ):
        return "numeric"
    if all(DATETIME_PATTERN.fullmatch(text) and _parse_datetime(text) for text in different):
        return "datetime"
    return "categorical" if come_back else "string"


def _convert_values(kind: str, column: RawColumn, name: str) -> np.ndarray:
    """The values as their kind wants them; what cannot be meant is refused."""
    values, is_number = column.values, column.values.dtype == np.float64
    here = ~np.isnan(values) if is_number else np.array([text is not None for text in values])
    if not here.any():  # without any value it has no looks
        return np.full(len(values), np.nan if kind in ("numeric", "datetime") else None)
    if kind in ("numeric", "datetime"):
        if is_number:
            if (kind == "datetime") != (column.inferred_type == "datetime"):
                raise _column_type_error(
                    name, kind, f"{'moments' if kind == 'numeric' else 'numbers'}"
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


def _column_type_error(name: str, kind: str, holds: str) -> UserError:
    return UserError(
        f"column {name!r} is {kind}, and holds {holds}; convert it, or say column_types={{...}} at "
        "fit"
    )


def _map_present(values: np.ndarray, function: Any) -> np.ndarray:
    """Of every value that is there."""
    known = {value: function(value) for value in np.unique(values[~np.isnan(values)])}
    made = np.empty(len(values), dtype=object)
    made[:] = [known.get(value) for value in values]
    return made


def _parse_booleans(values: np.ndarray, inferred_type: str, name: str) -> np.ndarray:
    texts = values if values.dtype == object else _map_present(values, format_value)
    made = np.empty(len(values), dtype=object)
    for place, text in enumerate(texts):
        if text is not None:
            made[place] = (
                BOOLEAN_VALUES.get(text.strip().lower()) if inferred_type != "datetime" else None
            )
            if made[place] is None:
                raise _column_type_error(name, "boolean", f"{text!r}")
    return made


def _parse_numbers(texts: np.ndarray, name: str) -> np.ndarray:
    made = np.full(len(texts), np.nan)
    for place, text in enumerate(texts):
        if text is not None:
            try:
                made[place] = float(text)
            except ValueError:
                raise _column_type_error(
                    name, "numeric", f"{text!r}, which could not be read"
                ) from None
    return np.where(np.isfinite(made), made, np.nan) + 0.0


def _parse_datetimes(texts: np.ndarray, name: str) -> np.ndarray:
    moments = [None if text is None else _parse_datetime(text) for text in texts]
    for moment, text in zip(moments, texts, strict=True):
        if moment is None and text is not None:
            raise UserError(
                f"column {name!r} is datetime, and holds what is no date in ISO form (2026-11-16 or"
                f" 2026-11-16T08:00): {text!r}"
            )
    return to_epoch_seconds(moments)


def _parse_datetime(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None


def empty_columns(columns: Sequence[Column]) -> list[str]:
    """Names of columns without a single value."""
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
    """A cell as text."""
    value = column.values[row]
    if value is None or value != value:
        return "absent"
    if column.kind == "datetime":
        return str(np.datetime64(int(value), "s"))
    return f"{value:g}" if column.kind == "numeric" else str(value)
