"""Model features of a column: numbers, categories and bags of words."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from addnorm.models.tabular.table_batch import (
    ABSENT,
    FIRST_KNOWN,
    FIRST_WORD,
    NO_TEXT,
    PADDING,
    RARE,
)
from addnorm.tabular.columns.quantiles import Quantiles
from addnorm.tabular.columns.reader import Column
from addnorm.tabular.columns.text_parsing import is_missing_text

MAX_CATEGORIES = 1024
"""Categories per column; rarer ones share the code `RARE`."""
MAX_WORDS, WORDS_PER_TEXT = 512, 12
"""Vocabulary size of a string column, and known words encoded per cell."""
MIN_WORD_TEXTS, MIN_WORD_FRACTION = 3, 0.002
"""Distinct texts, and fraction of the rows, that must contain a word of the vocabulary."""
DATETIME_PARTS = ("elapsed", "month", "weekday", "hour")
"""Numbers that are extracted from a datetime; "elapsed" is seconds since 1970."""


@dataclass(frozen=True)
class Number:
    """Numeric feature: the values of a numeric column, or one part of a datetime column."""

    column: int
    """Index of the column in the table."""
    part: str
    """One of `DATETIME_PARTS`, or empty for a numeric column."""
    curve: Quantiles

    def raw(self, column: Column) -> np.ndarray:
        """Return unscaled values, (rows) float64, NaN if missing."""
        return column.values if not self.part else datetime_part(column.values, self.part)

    def to_json(self) -> dict[str, Any]:
        """Return the feature as JSON-serializable data."""
        return {"column": self.column, "part": self.part, "curve": self.curve.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Number":
        """Rebuild a feature from the output of `to_json`."""
        return cls(data["column"], data["part"], Quantiles.from_json(data["curve"]))


@dataclass(frozen=True)
class Category:
    """Categorical feature: one code per known category, one for all others, one for missing."""

    column: int
    """Index of the column in the table."""
    values: tuple[str, ...]
    """Known categories, most frequent first."""

    @property
    def size(self) -> int:
        """Number of codes."""
        return FIRST_KNOWN + len(self.values)

    @classmethod
    def from_texts(cls, column: int, texts: np.ndarray, weights: np.ndarray) -> "Category":
        """Fit to training cells: keep the `MAX_CATEGORIES` categories of the largest weight."""
        mass = sum_weights(((text,) for text in texts), weights)
        ranked = sorted(mass, key=lambda text: (-mass[text], text))
        return cls(column, tuple(ranked[:MAX_CATEGORIES]))

    def codes(self, texts: np.ndarray) -> np.ndarray:
        """Return the code of each cell, (rows) int64."""
        known = {text: FIRST_KNOWN + index for index, text in enumerate(self.values)}
        distinct = set(texts) - {None}
        # A spelling of a missing value is a category if the fit knows it as one.
        codes_of = {
            text: known.get(text, ABSENT if is_missing_text(text) else RARE) for text in distinct
        }
        codes_of[None] = ABSENT
        return np.fromiter(map(codes_of.__getitem__, texts), np.int64, len(texts))

    def to_json(self) -> dict[str, Any]:
        """Return the feature as JSON-serializable data."""
        return {"column": self.column, "values": list(self.values)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Category":
        """Rebuild a feature from the output of `to_json`."""
        return cls(data["column"], tuple(data["values"]))


@dataclass(frozen=True)
class Text:
    """Text feature: a bag of known words."""

    column: int
    """Index of the column in the table."""
    words: tuple[str, ...]
    """Vocabulary, most frequent first."""

    @property
    def size(self) -> int:
        """Number of codes."""
        return FIRST_WORD + len(self.words)

    @classmethod
    def from_texts(cls, column: int, texts: np.ndarray, weights: np.ndarray) -> "Text":
        """Fit to training cells: keep the words that occur in enough distinct texts and rows."""
        rows = [() if text is None else tuple(dict.fromkeys(split_words(text))) for text in texts]
        mass = sum_weights(rows, weights)
        distinct = {text for text in texts if text is not None}
        num_texts = Counter(word for text in distinct for word in set(split_words(text)))
        min_mass = MIN_WORD_FRACTION * float(weights.sum())
        frequent = (
            word for word in mass if num_texts[word] >= MIN_WORD_TEXTS and mass[word] >= min_mass
        )
        ranked = sorted(frequent, key=lambda word: (-mass[word], word))
        return cls(column, tuple(ranked[:MAX_WORDS]))

    def codes(self, texts: np.ndarray) -> np.ndarray:
        """Return the codes of the first known words of each cell, (rows, WORDS_PER_TEXT) int64."""
        known = {word: FIRST_WORD + index for index, word in enumerate(self.words)}
        codes = np.full((len(texts), WORDS_PER_TEXT), PADDING, dtype=np.int64)
        for row, text in enumerate(texts):
            if text is None:
                codes[row, 0] = NO_TEXT
                continue
            distinct = dict.fromkeys(known[word] for word in split_words(text) if word in known)
            row_codes = list(distinct)[:WORDS_PER_TEXT]
            codes[row, : len(row_codes)] = row_codes
        return codes

    def to_json(self) -> dict[str, Any]:
        """Return the feature as JSON-serializable data."""
        return {"column": self.column, "words": list(self.words)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Text":
        """Rebuild a feature from the output of `to_json`."""
        return cls(data["column"], tuple(data["words"]))


def sum_weights(rows: Iterable[Sequence[str | None]], weights: np.ndarray) -> Counter[str]:
    """Return the total weight of the rows that contain each string."""
    mass: Counter[str] = Counter()
    for texts, weight in zip(rows, weights.tolist(), strict=True):
        for text in texts:
            if text is not None:
                mass[text] += weight
    return mass


def split_words(text: str) -> list[str]:
    """Split a text into lower-case runs of letters and runs of digits.

    >>> split_words("PC 17599, Mrs. Allen")
    ['pc', '17599', 'mrs', 'allen']
    """
    return re.findall(r"[^\W\d_]+|\d+", text.lower())


def datetime_part(seconds: np.ndarray, part: str) -> np.ndarray:
    """Return one part of datetimes given as seconds since 1970; NaN stays NaN.

    >>> datetime_part(np.array([0.0, np.nan]), "weekday")
    array([ 3., nan])
    """
    if part == "elapsed":
        return seconds
    present = ~np.isnan(seconds)
    datetimes = (np.where(present, seconds, 0.0)).astype("datetime64[s]")
    days = datetimes.astype("datetime64[D]")
    values = {
        "month": datetimes.astype("datetime64[M]").astype(np.int64) % 12 + 1,
        "weekday": (days.astype(np.int64) + 3) % 7,  # 1970-01-01 was a Thursday
        "hour": (datetimes - days).astype(np.int64) / 3600,
    }[part]
    return np.where(present, values, np.nan).astype(np.float64)
