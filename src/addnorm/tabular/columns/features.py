"""Features: what a column becomes for a model; one class a kind."""

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

MAX_CATEGORIES = 1024
"""Categories of a column that are told apart at most, the most frequent ones."""
MAX_WORDS, WORDS_PER_TEXT = 512, 12
"""Words of a column that are told apart at most, and of one text that are read."""
DATETIME_PARTS = ("elapsed", "month", "weekday", "hour")
"""What of a moment a model reads."""


@dataclass(frozen=True)
class Number:
    """A number of a column: the column's own, or a part of a moment."""

    column: int
    part: str
    curve: Quantiles

    def raw(self, column: Column) -> np.ndarray:
        """The number itself, float64; NaN where absent."""
        return column.values if not self.part else datetime_part(column.values, self.part)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"column": self.column, "part": self.part, "curve": self.curve.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Number":
        """From what `to_plain` made."""
        return cls(data["column"], data["part"], Quantiles.from_json(data["curve"]))


@dataclass(frozen=True)
class Category:
    """A column of categories that are known, all others together, or none."""

    column: int
    values: tuple[str, ...]

    @property
    def size(self) -> int:
        """Codes."""
        return FIRST_KNOWN + len(self.values)

    @classmethod
    def from_texts(cls, column: int, texts: np.ndarray, weights: np.ndarray) -> "Category":
        """Most frequent first; beyond a limit, the rest is rare."""
        mass = sum_weights(((text,) for text in texts), weights)
        ranked = sorted(mass, key=lambda text: (-mass[text], text))
        return cls(column, tuple(ranked[:MAX_CATEGORIES]))

    def codes(self, texts: np.ndarray) -> np.ndarray:
        """(rows), int64."""
        known = {text: FIRST_KNOWN + place for place, text in enumerate(self.values)}
        found = [ABSENT if text is None else known.get(text, RARE) for text in texts]
        return np.array(found, dtype=np.int64)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"column": self.column, "values": list(self.values)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Category":
        """From what `to_plain` made."""
        return cls(data["column"], tuple(data["values"]))


@dataclass(frozen=True)
class Text:
    """A column of texts as bags of known words; letters and digits are words of their own."""

    column: int
    words: tuple[str, ...]

    @property
    def size(self) -> int:
        """Codes."""
        return FIRST_WORD + len(self.words)

    @classmethod
    def from_texts(cls, column: int, texts: np.ndarray, weights: np.ndarray) -> "Text":
        """Words of at least three different texts and of one row in 500, most frequent first."""
        rows = [() if text is None else tuple(dict.fromkeys(split_words(text))) for text in texts]
        mass = sum_weights(rows, weights)
        different = {text for text in texts if text is not None}
        spread = Counter(word for text in different for word in set(split_words(text)))
        least = 0.002 * float(weights.sum())
        often = (word for word in mass if spread[word] >= 3 and mass[word] >= least)
        ranked = sorted(often, key=lambda word: (-mass[word], word))
        return cls(column, tuple(ranked[:MAX_WORDS]))

    def codes(self, texts: np.ndarray) -> np.ndarray:
        """(rows, SLOTS), int64."""
        known = {word: FIRST_WORD + place for place, word in enumerate(self.words)}
        made = np.full((len(texts), WORDS_PER_TEXT), PADDING, dtype=np.int64)
        for row, text in enumerate(texts):
            if text is None:
                made[row, 0] = NO_TEXT
                continue
            met = list(dict.fromkeys(known[word] for word in split_words(text) if word in known))
            made[row, : len(met[:WORDS_PER_TEXT])] = met[:WORDS_PER_TEXT]
        return made

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"column": self.column, "words": list(self.words)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Text":
        """From what `to_plain` made."""
        return cls(data["column"], tuple(data["words"]))


def sum_weights(rows: Iterable[Sequence[str | None]], weights: np.ndarray) -> Counter[str]:
    """The weight of every text."""
    mass: Counter[str] = Counter()
    for texts, weight in zip(rows, weights.tolist(), strict=True):
        for text in texts:
            if text is not None:
                mass[text] += weight
    return mass


def split_words(text: str) -> list[str]:
    """Runs of letters, and runs of digits, in lower case.

    >>> words_of("PC 17599, Mrs. Allen")
    ['pc', '17599', 'mrs', 'allen']
    """
    return re.findall(r"[^\W\d_]+|\d+", text.lower())


def datetime_part(seconds: np.ndarray, part: str) -> np.ndarray:
    """A part of moments, as numbers; NaN where absent.

    >>> part_of(np.array([0.0, np.nan]), "weekday")
    array([ 3., nan])
    """
    if part == "elapsed":
        return seconds
    here = ~np.isnan(seconds)
    moments = (np.where(here, seconds, 0.0)).astype("datetime64[s]")
    days = moments.astype("datetime64[D]")
    made = {
        "month": moments.astype("datetime64[M]").astype(np.int64) % 12 + 1,
        "weekday": (days.astype(np.int64) + 3) % 7,
        "hour": (moments - days).astype(np.int64) / 3600,
    }[part]
    return np.where(here, made, np.nan).astype(np.float64)
