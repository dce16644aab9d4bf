"""Conversion of columns of any library to float64 arrays or arrays of strings and None.

None, NaN, NaT, pandas.NA, infinities and blank strings all count as missing. The result has NaN for
a missing number and None for a missing string.
"""

import numbers
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np

from addnorm.core.errors import UserError

NESTED_TYPES = (list, dict, set, np.ndarray)
"""Types of cells with several values, as Arrow and polars lists and structs are converted to."""


@dataclass(frozen=True)
class RawColumn:
    """Column with the type of its library, before strings are parsed."""

    inferred_type: str
    """`numeric`, `boolean`, `datetime`, `categorical` (by dtype) or `text`."""
    values: np.ndarray
    """(rows) float64 (datetimes as seconds since 1970), else strings and None."""


def to_raw_column(values: Any, *, as_text: bool = False) -> RawColumn:
    """Convert a pandas series or a 1-D array.

    Args:
        values: column to convert
        as_text: keep numbers as strings, digit for digit; float64 would round large integers
    """
    array = values if isinstance(values, np.ndarray) else _from_pandas(values, as_text)
    if isinstance(array, RawColumn):
        return array
    if array.dtype.kind == "b":
        return RawColumn("boolean", array.astype(np.float64))
    if array.dtype.kind in "iuf":
        return (
            RawColumn("text", _to_texts(array))
            if as_text
            else RawColumn("numeric", _replace_infinities(array))
        )
    if array.dtype.kind in "mM":
        return RawColumn("datetime" if array.dtype.kind == "M" else "numeric", _to_seconds(array))
    return _from_objects(array.astype(object), as_text)


def _from_pandas(series: Any, as_text: bool) -> np.ndarray | RawColumn:
    from pandas import ArrowDtype, CategoricalDtype, PeriodDtype
    from pandas.api import types

    dtype = series.dtype
    if isinstance(dtype, CategoricalDtype):
        return RawColumn("categorical", _to_texts(series.astype(object).to_numpy()))
    if types.is_complex_dtype(dtype):
        raise UserError(f"Complex data not supported: {dtype}")
    if types.is_bool_dtype(dtype):
        return RawColumn("boolean", series.to_numpy(dtype=np.float64, na_value=np.nan))
    if types.is_numeric_dtype(dtype):
        if as_text:
            return np.asarray(series.to_numpy(dtype=object, na_value=None))
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    if isinstance(dtype, ArrowDtype) and not types.is_string_dtype(dtype):
        import pyarrow

        return _from_pandas(pyarrow.array(series).to_pandas(date_as_object=False), as_text)
    if isinstance(dtype, PeriodDtype):
        return np.asarray(series.dt.to_timestamp().to_numpy(dtype="datetime64[us]"))
    if types.is_datetime64_any_dtype(dtype):
        utc = series.dt.tz_convert("UTC").dt.tz_localize(None) if series.dt.tz else series
        return np.asarray(utc.to_numpy(dtype="datetime64[us]"))
    if types.is_timedelta64_dtype(dtype):
        return np.asarray(series.to_numpy(dtype="timedelta64[us]"))
    return np.asarray(series.to_numpy(dtype=object, na_value=None))


def _from_objects(values: np.ndarray, as_text: bool) -> RawColumn:
    texts = _read_texts(values)
    if texts is not None:
        return RawColumn("text", texts)
    present = [value for value in values if not _is_missing(value)]

    def all_are(kinds: Any) -> bool:
        return all(isinstance(value, kinds) for value in present)

    if present and all_are(bool | np.bool_):
        return RawColumn("boolean", _to_floats(values))
    if all_are(numbers.Real | Decimal) and not (as_text and present):
        return RawColumn("numeric", _replace_infinities(_to_floats(values)))
    if all_are(timedelta | np.timedelta64) and present:
        spans = [None if _is_missing(value) else np.timedelta64(value, "us") for value in values]
        return RawColumn("numeric", _to_seconds(np.array(spans, dtype="timedelta64[us]")))
    if all_are(date | np.datetime64) and present:
        return RawColumn("datetime", to_epoch_seconds(values))
    if present and all(type(value).__name__ == "Period" for value in present):
        starts = [None if _is_missing(value) else value.to_timestamp() for value in values]
        return RawColumn("datetime", to_epoch_seconds(starts))
    if any(isinstance(value, complex | np.complexfloating) for value in present):
        raise UserError("Complex data not supported")
    nested = next((each for each in present if isinstance(each, NESTED_TYPES)), None)
    if nested is not None and not as_text:
        raise UserError(
            f"expected one value in each cell, got a {type(nested).__name__}; make a column of "
            "each element, drop the column, or declare it categorical in column_types"
        )
    return RawColumn("text", _to_texts(values))


def _read_texts(values: np.ndarray) -> np.ndarray | None:
    """Return the texts of a column of strings, read once for each distinct one; None for others.

    Missing cells may be None or NaN.
    """
    cells = values.tolist()
    if not {str} <= set(map(type, cells)) <= {str, float, type(None)}:
        return None
    # Equal cells of these types are formatted alike. The same would not hold for 1 and True.
    text_of = {cell: None if _is_missing(cell) else format_value(cell) for cell in set(cells)}
    if not any(type(cell) is str and text is not None for cell, text in text_of.items()):
        return None
    texts = np.empty(len(cells), dtype=object)
    texts[:] = list(map(text_of.__getitem__, cells))
    return texts


def to_epoch_seconds(datetimes: Any) -> np.ndarray:
    """Convert dates and datetimes to seconds since 1970, (rows) float64, NaN if missing."""
    stamps = [None if _is_missing(value) else _to_datetime64(value) for value in datetimes]
    return _to_seconds(np.array(stamps, dtype="datetime64[us]"))


def _to_datetime64(value: Any) -> np.datetime64:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(timezone.utc).replace(tzinfo=None)
    return np.datetime64(value, "us")


def _to_seconds(values: np.ndarray) -> np.ndarray:
    # Microseconds, because 64-bit nanoseconds overflow in the year 2262.
    microseconds = values.astype(f"{values.dtype.kind}8[us]")
    return np.where(np.isnat(microseconds), np.nan, microseconds.astype(np.int64) / 1e6)


def _to_texts(values: np.ndarray) -> np.ndarray:
    texts = np.empty(len(values), dtype=object)
    texts[:] = [None if _is_missing(value) else format_value(value) for value in values]
    return texts


def format_value(value: Any) -> str:
    """Format a cell as a category: integers without a decimal point, datetimes in ISO format.

    >>> format_value(3.0), format_value(2.5), format_value(b"abc")
    ('3', '2.5', 'abc')
    >>> format_value(date(2026, 11, 16))
    '2026-11-16T00:00:00'
    """
    if isinstance(value, date | np.datetime64):
        return str(_to_datetime64(value).astype("datetime64[s]"))
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float | np.floating):
        return str(int(value)) if value == int(value) else str(float(value))
    return str(value)


def _is_missing(value: Any) -> bool:
    if value is None or (isinstance(value, str | bytes) and not value.strip()):
        return True
    if isinstance(value, float | np.floating):
        return not np.isfinite(value)
    if isinstance(value, Decimal):
        return not value.is_finite()
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return type(value).__name__ in ("NAType", "NaTType")


def _to_floats(values: np.ndarray) -> np.ndarray:
    return np.array([np.nan if _is_missing(value) else _to_float(value) for value in values])


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond the range of float64
        return np.inf


def _replace_infinities(values: np.ndarray) -> np.ndarray:
    values = values.astype(np.float64)
    return np.where(np.isfinite(values), values, np.nan) + 0.0  # + 0.0 turns -0.0 into 0.0
