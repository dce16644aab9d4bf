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
class Plain:
    """A column as it looks by itself."""

    looks: str
    """numeric, boolean, datetime, text, or categorical where its type says so."""
    values: np.ndarray
    """float64 (datetimes are seconds since 1970), else text or None."""


def plain_of(values: Any, *, spelt: bool = False) -> Plain:
    """A column of pandas, or an array of one dimension.

    spelt: as text, digit for digit; a number that went through float64 may be another
    """
    array = values if isinstance(values, np.ndarray) else _from_pandas(values, spelt)
    if isinstance(array, Plain):
        return array
    if array.dtype.kind == "b":
        return Plain("boolean", array.astype(np.float64))
    if array.dtype.kind in "iuf":
        return Plain("text", _texts(array)) if spelt else Plain("numeric", _finite(array))
    if array.dtype.kind in "mM":
        return Plain("datetime" if array.dtype.kind == "M" else "numeric", _seconds(array))
    return _from_objects(array.astype(object), spelt)


def _from_pandas(series: Any, spelt: bool) -> np.ndarray | Plain:
    from pandas import ArrowDtype, CategoricalDtype
    from pandas.api import types

    dtype = series.dtype
    if isinstance(dtype, CategoricalDtype):
        return Plain("categorical", _texts(series.astype(object).to_numpy()))
    if types.is_complex_dtype(dtype):
        raise UserError(f"Complex data not supported: column {series.name!r} holds {dtype}")
    if types.is_bool_dtype(dtype):
        return Plain("boolean", series.to_numpy(dtype=np.float64, na_value=np.nan))
    if types.is_numeric_dtype(dtype):
        if spelt:
            return np.asarray(series.to_numpy(dtype=object, na_value=None))
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    if isinstance(dtype, ArrowDtype) and not types.is_string_dtype(dtype):
        import pyarrow

        return _from_pandas(pyarrow.array(series).to_pandas(date_as_object=False), spelt)
    if types.is_datetime64_any_dtype(dtype):
        plain = series.dt.tz_convert("UTC").dt.tz_localize(None) if series.dt.tz else series
        return np.asarray(plain.to_numpy(dtype="datetime64[us]"))
    if types.is_timedelta64_dtype(dtype):
        return np.asarray(series.to_numpy(dtype="timedelta64[us]"))
    return np.asarray(series.to_numpy(dtype=object, na_value=None))


def _from_objects(values: np.ndarray, spelt: bool) -> Plain:
    """Python objects: numbers, truths, dates, spans of time, or anything as text."""
    present = [value for value in values if not _nothing(value)]

    def all_are(kinds: Any) -> bool:
        return all(isinstance(value, kinds) for value in present)

    if present and all_are(bool | np.bool_):
        return Plain("boolean", _floats(values))
    if all_are(numbers.Real | Decimal) and not (spelt and present):
        return Plain("numeric", _finite(_floats(values)))
    if all_are(timedelta | np.timedelta64) and present:
        spans = [None if _nothing(value) else np.timedelta64(value, "us") for value in values]
        return Plain("numeric", _seconds(np.array(spans, dtype="timedelta64[us]")))
    if all_are(date | np.datetime64) and present:
        return Plain("datetime", seconds_of(values))
    if any(isinstance(value, complex | np.complexfloating) for value in present):
        raise UserError("Complex data not supported")
    return Plain("text", _texts(values))


def seconds_of(moments: Any) -> np.ndarray:
    """Dates and times of Python as seconds since 1970, NaN where absent."""
    stamps = [None if _nothing(value) else _stamp(value) for value in moments]
    return _seconds(np.array(stamps, dtype="datetime64[us]"))


def _stamp(value: Any) -> np.datetime64:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return np.datetime64(value, "us")


def _seconds(values: np.ndarray) -> np.ndarray:
    # Microseconds: nanoseconds end in the year 2262.
    whole = values.astype(f"{values.dtype.kind}8[us]")
    return np.where(np.isnat(whole), np.nan, whole.astype(np.int64) / 1e6)


def _texts(values: np.ndarray) -> np.ndarray:
    made = np.empty(len(values), dtype=object)
    made[:] = [None if _nothing(value) else spell(value) for value in values]
    return made


def spell(value: Any) -> str:
    """A cell as text; whole numbers without a point, moments in ISO form.

    >>> spell(3.0), spell(2.5), spell(b"abc"), spell(date(2026, 11, 16))
    ('3', '2.5', 'abc', '2026-11-16T00:00:00')
    """
    if isinstance(value, date | np.datetime64):
        return str(_stamp(value).astype("datetime64[s]"))
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float | np.floating):
        return str(int(value)) if value == int(value) else str(float(value))
    return str(value)


def _nothing(value: Any) -> bool:
    if value is None or (isinstance(value, str | bytes) and not value.strip()):
        return True
    if isinstance(value, float | np.floating):
        return not np.isfinite(value)
    if isinstance(value, Decimal):
        return not value.is_finite()
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return type(value).__name__ in ("NAType", "NaTType")


def _floats(values: np.ndarray) -> np.ndarray:
    return np.array([np.nan if _nothing(value) else _float(value) for value in values])


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond all floats
        return np.inf


def _finite(values: np.ndarray) -> np.ndarray:
    """In float64; infinities are absent too; -0.0 is 0.0."""
    values = values.astype(np.float64)
    return np.where(np.isfinite(values), values, np.nan) + 0.0
