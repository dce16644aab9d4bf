"""Columns of any table as plain arrays, and what kind each is.

Absent is None, NaN, NaT, an infinity or an empty text, whatever the library calls it; from here on
it is NaN among numbers and None among texts.
"""

import numbers
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np

from addnorm.core.errors import UserError, unknown

KINDS = ("numeric", "boolean", "categorical", "string", "datetime")
FEW = 64
"""Different texts that are always taken for categories."""
OFTEN = 8
"""Rows that a text must have on average to be taken for a category beyond that."""


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


def as_pandas(X: Any) -> Any:
    """A frame of whatever library as one of pandas, through Arrow."""
    import pandas

    if isinstance(X, pandas.DataFrame):
        return X
    import pyarrow

    return pyarrow.table(X).to_pandas(date_as_object=False)


def raw_columns(X: Any) -> list[tuple[str, Any]]:
    """(name, values) of every column of a pandas frame or a 2-d array."""
    if isinstance(X, np.ndarray):
        return [(f"x{index}", X[:, index]) for index in range(X.shape[1])]
    return [(str(name), X.iloc[:, index]) for index, name in enumerate(X.columns)]


def read_columns(X: Any, kinds: Mapping[Any, str] | None = None) -> list[Column]:
    """Every column with the kind that is told in `kinds`, by name or position, or found.

    >>> [column.kind for column in read_columns(np.array([[1.5, 2.0]]))]
    ['numeric', 'numeric']
    """
    raw, kinds = raw_columns(X), dict(kinds or {})
    names = [name for name, _ in raw]
    told = dict[int, str]()
    for key, kind in kinds.items():
        if kind not in KINDS:
            raise UserError(unknown("column type", str(kind), KINDS))
        if isinstance(key, numbers.Integral) and key not in names and 0 <= int(key) < len(raw):
            told[int(key)] = kind
        elif str(key) in names:
            told[names.index(str(key))] = kind
        else:
            raise UserError(unknown("column in column_types", str(key), names))
    return [read_column(name, values, told.get(index)) for index, (name, values) in enumerate(raw)]


def read_column(name: str, values: Any, kind: str | None = None) -> Column:
    """One column; its kind is found if it is not told."""
    found, plain = _plain(values)
    kind = kind or (_text_kind(plain) if found == "text" else found)
    return Column(name, kind, _as(kind, plain, found, name))


def _plain(values: Any) -> tuple[str, np.ndarray]:
    """(kind or "text", float64 or an array of texts and None)."""
    array = values if isinstance(values, np.ndarray) else _from_pandas(values)
    if isinstance(array, tuple):
        return array
    if array.dtype.kind == "b":
        return "boolean", array.astype(np.float64)
    if array.dtype.kind in "iuf":
        return "numeric", _finite(array.astype(np.float64))
    if array.dtype.kind in "mM":
        kind = "datetime" if array.dtype.kind == "M" else "numeric"
        return kind, _seconds(array)
    if array.dtype.kind in "US":  # numpy made texts of numbers that stood beside texts
        with suppress(ValueError):
            return "numeric", _finite(array.astype(np.float64))
    return _from_objects(array.astype(object))


def _from_pandas(series: Any) -> Any:
    """A pandas column as an array, or as what `_plain` returns."""
    from pandas import CategoricalDtype
    from pandas.api import types

    dtype = series.dtype
    if isinstance(dtype, CategoricalDtype):
        texts = series.astype(object).to_numpy()
        return "categorical", _texts(texts)
    if types.is_bool_dtype(dtype):
        floats = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return "boolean", floats
    if types.is_complex_dtype(dtype):
        raise UserError(f"Complex data not supported: column {series.name!r} holds {dtype}")
    if types.is_numeric_dtype(dtype):
        return "numeric", _finite(series.to_numpy(dtype=np.float64, na_value=np.nan))
    if types.is_datetime64_any_dtype(dtype):
        plain = series.dt.tz_convert("UTC").dt.tz_localize(None) if series.dt.tz else series
        return plain.to_numpy(dtype="datetime64[ns]")
    if types.is_timedelta64_dtype(dtype):
        return series.to_numpy(dtype="timedelta64[ns]")
    return series.to_numpy(dtype=object, na_value=None)


def _from_objects(values: np.ndarray) -> tuple[str, np.ndarray]:
    """Python objects: numbers, truths, dates, or anything as text."""
    present = [value for value in values if not _nothing(value)]
    if all(isinstance(value, bool | np.bool_) for value in present) and present:
        return "boolean", _floats(values)
    if all(isinstance(value, numbers.Real | Decimal) for value in present):
        return "numeric", _finite(_floats(values))
    if all(isinstance(value, date | datetime | np.datetime64) for value in present):
        stamps = [None if _nothing(value) else _stamp(value) for value in values]
        return "datetime", _seconds(np.array(stamps, dtype="datetime64[ns]"))
    return "text", _texts(values)


def _as(kind: str, plain: np.ndarray, found: str, name: str) -> np.ndarray:
    """The values as their kind wants them."""
    is_number = plain.dtype == np.float64
    if kind in ("numeric", "datetime"):
        if is_number:
            return plain
        return _parsed(plain, name) if kind == "numeric" else _dated(plain, name)
    if not is_number:
        return plain
    truths = kind == "boolean" or found == "boolean"
    spelt = {value: _spelt(value, truths) for value in np.unique(plain[~np.isnan(plain)])}
    return np.array([spelt.get(value) for value in plain], dtype=object)


def _spelt(value: float, truths: bool) -> str:
    if truths and value in (0.0, 1.0):
        return str(bool(value))
    return str(int(value)) if value == int(value) else repr(float(value))


def _parsed(texts: np.ndarray, name: str) -> np.ndarray:
    try:
        return _finite(np.array([np.nan if text is None else float(text) for text in texts]))
    except ValueError as problem:
        raise UserError(
            f"column {name!r} is numeric, and {str(problem).removeprefix('could not ')!r}: could "
            "not be read; say column_types={...: 'categorical'} at fit if it holds texts"
        ) from None


def _dated(texts: np.ndarray, name: str) -> np.ndarray:
    try:
        stamps = [None if text is None else _stamp(datetime.fromisoformat(text)) for text in texts]
    except ValueError:
        raise UserError(
            f"column {name!r} is datetime, and holds what is no date in ISO form (2026-11-16 or "
            "2026-11-16T08:00)"
        ) from None
    return _seconds(np.array(stamps, dtype="datetime64[ns]"))


def _text_kind(texts: np.ndarray) -> str:
    """Categories where texts come back, else free text."""
    present = [text for text in texts if text is not None]
    different = len(set(present))
    return "categorical" if different <= max(FEW, len(present) // OFTEN) else "string"


def _texts(values: np.ndarray) -> np.ndarray:
    made = [None if _nothing(value) else _spell(value) for value in values]
    return np.array(made, dtype=object)


def _spell(value: Any) -> str:
    whole = isinstance(value, float | np.floating) and value == int(value)
    return str(int(value)) if whole else str(value)


def _nothing(value: Any) -> bool:
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    if isinstance(value, float | np.floating):
        return not np.isfinite(value)
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return type(value).__name__ in ("NAType", "NaTType")


def _floats(values: np.ndarray) -> np.ndarray:
    return np.array([np.nan if _nothing(value) else float(value) for value in values])


def _finite(values: np.ndarray) -> np.ndarray:
    """Infinities are absent too; -0.0 is 0.0."""
    return np.where(np.isfinite(values), values, np.nan) + 0.0


def _stamp(value: Any) -> np.datetime64:
    if isinstance(value, datetime) and value.tzinfo is not None:
        from datetime import UTC

        value = value.astimezone(UTC).replace(tzinfo=None)
    return np.datetime64(value, "ns")


def _seconds(values: np.ndarray) -> np.ndarray:
    whole = values.astype(f"{values.dtype.kind}8[ns]")
    seconds = whole.astype(np.int64) / 1e9
    return np.where(np.isnat(whole), np.nan, seconds)


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


def shown(column: Column, row: int) -> str:
    """A cell as text."""
    value = column.values[row]
    if value is None or value != value:
        return "absent"
    if column.kind == "datetime":
        return str(np.datetime64(int(value), "s"))
    return f"{value:g}" if column.kind == "numeric" else str(value)
