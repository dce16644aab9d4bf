"""Cells of a column of whatever library as plain arrays: numbers, or texts and None.

Absent is None, NaN, NaT, an infinity or an empty text, whatever the library calls it; from here on
it is NaN among numbers and None among texts.
"""

import numbers
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

from addnorm.core.errors import UserError


@dataclass(frozen=True)
class RawColumn:
    """A column as it looks by itself."""

    inferred_type: str
    """numeric, boolean, datetime, text, or categorical where its type says so."""
    values: np.ndarray
    """float64 (datetimes are seconds since 1970), else text or None."""


def to_raw_column(values: Any, *, as_text: bool = False) -> RawColumn:
    """A column of pandas, or an array of one dimension.

    spelt: as text, digit for digit; a number that went through float64 may be another
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
    from pandas import ArrowDtype, CategoricalDtype
    from pandas.api import types

    dtype = series.dtype
    if isinstance(dtype, CategoricalDtype):
        return RawColumn("categorical", _to_texts(series.astype(object).to_numpy()))
    if types.is_complex_dtype(dtype):
        raise UserError(f"Complex data not supported: column {series.name!r} holds {dtype}")
    if types.is_bool_dtype(dtype):
        return RawColumn("boolean", series.to_numpy(dtype=np.float64, na_value=np.nan))
    if types.is_numeric_dtype(dtype):
        if as_text:
            return np.asarray(series.to_numpy(dtype=object, na_value=None))
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    if isinstance(dtype, ArrowDtype) and not types.is_string_dtype(dtype):
        import pyarrow

        return _from_pandas(pyarrow.array(series).to_pandas(date_as_object=False), as_text)
    if types.is_datetime64_any_dtype(dtype):
        plain = series.dt.tz_convert("UTC").dt.tz_localize(None) if series.dt.tz else series
        return np.asarray(plain.to_numpy(dtype="datetime64[us]"))
    if types.is_timedelta64_dtype(dtype):
        return np.asarray(series.to_numpy(dtype="timedelta64[us]"))
    return np.asarray(series.to_numpy(dtype=object, na_value=None))


def _from_objects(values: np.ndarray, as_text: bool) -> RawColumn:
    """Python objects: numbers, truths, dates, spans of time, or anything as text."""
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
    if any(isinstance(value, complex | np.complexfloating) for value in present):
        raise UserError("Complex data not supported")
    return RawColumn("text", _to_texts(values))


def to_epoch_seconds(moments: Any) -> np.ndarray:
    """Dates and times of Python as seconds since 1970, NaN where absent."""
    stamps = [None if _is_missing(value) else _to_datetime64(value) for value in moments]
    return _to_seconds(np.array(stamps, dtype="datetime64[us]"))


def _to_datetime64(value: Any) -> np.datetime64:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return np.datetime64(value, "us")


def _to_seconds(values: np.ndarray) -> np.ndarray:
    # Microseconds: nanoseconds end in the year 2262.
    whole = values.astype(f"{values.dtype.kind}8[us]")
    return np.where(np.isnat(whole), np.nan, whole.astype(np.int64) / 1e6)


def _to_texts(values: np.ndarray) -> np.ndarray:
    made = np.empty(len(values), dtype=object)
    made[:] = [None if _is_missing(value) else format_value(value) for value in values]
    return made


def format_value(value: Any) -> str:
    """A cell as text; whole numbers without a point, moments in ISO form.

    >>> spell(3.0), spell(2.5), spell(b"abc"), spell(date(2026, 11, 16))
    ('3', '2.5', 'abc', '2026-11-16T00:00:00')
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
    except OverflowError:  # a whole number beyond all floats
        return np.inf


def _replace_infinities(values: np.ndarray) -> np.ndarray:
    """In float64; infinities are absent too; -0.0 is 0.0."""
    values = values.astype(np.float64)
    return np.where(np.isfinite(values), values, np.nan) + 0.0
