"""Parsing of text cells: spellings of missing values, numbers, booleans and dates.

A cell that cannot be parsed counts as missing and is reported, as long as other cells of its column
can be parsed. If none can, the column has another type, which is an error.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from addnorm.core.errors import UserError
from addnorm.tabular.columns.column_conversion import to_epoch_seconds

MISSING_TEXTS = frozenset(
    {
        *("", "?", "-", "--", ".", "na", "n/a", "n.a.", "nan", "-nan", "nat", "null", "none"),
        *("nil", "<na>", "#n/a", "#na", "#null!", "#value!", "#div/0!", "missing"),
    }
)
"""Texts that count as missing, in lower case and without surrounding spaces."""
NUMBER_PATTERN = re.compile(r"\s*[+-]?(?:0|[1-9]\d*|(?=\.\d))(\.\d*)?([eE][+-]?\d+)?\s*")
"""A number written as text; leading zeros, as in 007, mark an identifier instead."""
BOOLEAN_VALUES = {"true": "True", "false": "False", "1": "True", "0": "False"}
ISO = "ISO"
"""Name of the format of `datetime.fromisoformat`."""
ISO_PATTERN = re.compile(r"\s*\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?\s*")
DATE_PATTERN = re.compile(r"\s*(\w{1,9}[/., -]\s?){2}\d{2,4}\b.*|\s*\d{4}[/.]\d{1,2}[/.]\d{1,2}.*")
"""Texts that may be a date in one of `DATE_FORMATS`; most other texts fail at once."""
DATE_FORMATS = (
    *("%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%m/%d/%y"),
    *("%d/%m/%y", "%d-%b-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y"),
)
"""Formats of dates besides ISO; of two that fit all cells, the first is used."""
TIME_FORMATS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
SAMPLE_SIZE = 20
"""Texts that decide which formats are tried on all texts."""


@dataclass(frozen=True)
class ParsedTexts:
    """Values of text cells, and the cells that could not be parsed."""

    values: np.ndarray
    """(rows) float64 or objects, NaN or None if missing."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Number of rows of every text that could not be parsed."""


def is_missing_text(text: str) -> bool:
    """Return whether a text is a usual spelling of a missing value.

    >>> is_missing_text(" ?"), is_missing_text("N/A"), is_missing_text("Nairobi")
    (True, True, False)
    """
    return len(text) < 20 and text.strip().lower() in MISSING_TEXTS


def missing_text_spellings() -> list[str]:
    """Return `MISSING_TEXTS` in lower case, upper case, capitalized, and as NaN and NaT."""
    spellings = {f(text) for text in MISSING_TEXTS for f in (str, str.upper, str.capitalize)}
    return sorted(spellings | {"NaN", "-NaN", "NaT"})


def remove_missing_texts(texts: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
    """Replace spellings of missing values by None; return the cells and the count of each."""
    spellings = {text for text in set(texts) if text is not None and is_missing_text(text)}
    if not spellings:
        return texts, {}
    counts = Counter(text for text in texts if text in spellings)
    cells = np.empty(len(texts), dtype=object)
    cells[:] = [None if text in spellings else text for text in texts]
    return cells, dict(counts)


def parse_numbers(texts: np.ndarray, name: str) -> ParsedTexts:
    """Parse numbers, (rows) float64; infinities count as missing."""
    parsed = _parse_distinct(texts, _to_float, name, "numeric")
    values = np.array([np.nan if each is None else each for each in parsed.values], np.float64)
    finite = np.where(np.isfinite(values), values, np.nan) + 0.0  # + 0.0 turns -0.0 into 0.0
    return ParsedTexts(finite, parsed.failed)


def parse_booleans(texts: np.ndarray, name: str) -> ParsedTexts:
    """Parse booleans, as the strings "True" and "False"."""
    return _parse_distinct(
        texts, lambda text: BOOLEAN_VALUES.get(text.strip().lower()), name, "boolean"
    )


def parse_datetimes(texts: np.ndarray, name: str, date_format: str) -> ParsedTexts:
    """Parse datetimes in a format or in ISO format, (rows) float64 seconds since 1970."""

    def parse(text: str) -> datetime | None:
        return parse_datetime(text, date_format) or parse_datetime(text, ISO)

    parsed = _parse_distinct(texts, parse, name, "datetime")
    return ParsedTexts(to_epoch_seconds(parsed.values), parsed.failed)


def parse_datetime(text: str, date_format: str) -> datetime | None:
    """Parse one datetime; return None if it does not have the format."""
    try:
        if date_format == ISO:
            return datetime.fromisoformat(text.strip())
        return datetime.strptime(text.strip(), date_format)
    except ValueError:
        return None


def find_date_formats(texts: Iterable[str]) -> list[str]:
    """Return the formats of dates that all texts have, the preferred one first.

    >>> find_date_formats(["12/31/2026", "01/02/2026"])
    ['%m/%d/%Y']
    >>> find_date_formats(["2026-11-16", "2026-11-16T08:00"])
    ['ISO']
    """
    distinct = list(texts)
    if all(ISO_PATTERN.fullmatch(text) for text in distinct):
        return [ISO] * all(parse_datetime(text, ISO) for text in distinct)
    sample = distinct[:SAMPLE_SIZE]
    if not all(DATE_PATTERN.fullmatch(text) for text in sample):
        return []
    formats = [f"{day}{time}" for day in DATE_FORMATS for time in TIME_FORMATS]
    candidates = [each for each in formats if all(parse_datetime(text, each) for text in sample)]
    return [each for each in candidates if all(parse_datetime(text, each) for text in distinct)]


def best_date_format(texts: Iterable[str]) -> str:
    """Return the format of all texts, else of most: of cells that are declared to be datetimes."""
    distinct = sorted(texts)
    if common := find_date_formats(distinct):
        return common[0]
    formats = [ISO, *(f"{day}{time}" for day in DATE_FORMATS for time in TIME_FORMATS)]
    sample = distinct[:: max(1, len(distinct) // 100)]
    return max(formats, key=lambda each: sum(parse_datetime(x, each) is not None for x in sample))


def column_type_error(name: str, kind: str, actual: str) -> UserError:
    """Return the error for a column whose values have another type than `kind`."""
    examples = " such as 2026-11-16 or 11/16/2026" if kind == "datetime" else ""
    return UserError(
        f"column {name!r}: expected {kind} values{examples}, got {actual}; convert the column or "
        "set its type in column_types at fit"
    )


def _parse_distinct(
    texts: np.ndarray, parse: Callable[[str], Any], name: str, kind: str
) -> ParsedTexts:
    """Parse every distinct text once; raise `UserError` if none can be parsed."""
    distinct = set(texts) - {None}
    parsed = {text: parse(text) for text in distinct}
    unknown = {text for text, value in parsed.items() if value is None}
    if unknown and len(unknown) == len(distinct):
        raise column_type_error(name, kind, repr(next(text for text in texts if text is not None)))
    values = np.empty(len(texts), dtype=object)
    values[:] = [parsed.get(text) for text in texts]
    return ParsedTexts(values, dict(Counter(text for text in texts if text in unknown)))


def _to_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
