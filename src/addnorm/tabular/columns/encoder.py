"""Encoder from table columns to model inputs, fitted to the training rows.

A numeric column becomes one number, a datetime column up to four numbers, a boolean or categorical
column one category, and a string column one bag of words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from addnorm.models.tabular.table_batch import TableBatch
from addnorm.tabular.columns.cell_warnings import warn_about_failed_cells
from addnorm.tabular.columns.features import (
    DATETIME_PARTS,
    WORDS_PER_TEXT,
    Category,
    Number,
    Text,
    datetime_part,
)
from addnorm.tabular.columns.quantiles import Quantiles
from addnorm.tabular.columns.reader import Column, raw_columns, read_column


@dataclass(frozen=True)
class TableEncoder:
    """Fitted encoding of every column of a table."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    texts: tuple[Text, ...]
    date_formats: tuple[str, ...] = ()
    """Format of the datetimes of each column that were texts, else empty."""

    @classmethod
    def from_columns(cls, columns: Sequence[Column], weights: np.ndarray) -> "TableEncoder":
        """Fit an encoder to training columns.

        Args:
            columns: training columns, all of the same length
            weights: (rows) positive weights
        """
        numbers, categories, texts = [], [], []
        for index, column in enumerate(columns):
            if column.kind == "numeric":
                numbers.append(_build_number(index, "", column.values, weights))
            elif column.kind == "datetime":
                for part in DATETIME_PARTS:
                    values = datetime_part(column.values, part)
                    if part == "elapsed" or len(np.unique(values[~np.isnan(values)])) > 1:
                        numbers.append(_build_number(index, part, values, weights))
            elif column.kind == "string":
                texts.append(Text.from_texts(index, column.values, weights))
            else:
                categories.append(Category.from_texts(index, column.values, weights))
        return cls(
            tuple(column.name for column in columns),
            tuple(column.kind for column in columns),
            tuple(numbers),
            tuple(categories),
            tuple(texts),
            tuple(column.date_format for column in columns),
        )

    @property
    def sources(self) -> list[int]:
        """Index of the column of each model feature: numbers, then categories, then texts."""
        features: list[Number | Category | Text] = [*self.numbers, *self.categories, *self.texts]
        return [each.column for each in features]

    @property
    def layout(self) -> dict[str, Any]:
        """Feature counts and vocabulary sizes, as fields of `TableConfig`."""
        return {
            "numbers": len(self.numbers),
            "categories": tuple(each.size for each in self.categories),
            "texts": tuple(each.size for each in self.texts),
        }

    def read(self, X: Any) -> list[Column]:
        """Read the columns of another table with the types of the fit."""
        formats = self.date_formats or ("",) * len(self.names)
        columns = zip(raw_columns(X), self.names, self.kinds, formats, strict=True)
        return [
            read_column(name, values, kind, date_format=date_format, keep_texts=True)
            for (_, values), name, kind, date_format in columns
        ]

    def raw_features(self, columns: Sequence[Column]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return unscaled numbers, category codes and word codes.

        Shapes: (rows, numbers), (rows, categories) and (rows, texts, WORDS_PER_TEXT).
        """
        rows = len(columns[0].values)
        numbers = [each.raw(columns[each.column]) for each in self.numbers]
        codes = [each.codes(columns[each.column].values) for each in self.categories]
        words = [each.codes(columns[each.column].values) for each in self.texts]
        return (
            np.stack(numbers, 1) if numbers else np.zeros((rows, 0)),
            np.stack(codes, 1) if codes else np.zeros((rows, 0), np.int64),
            np.stack(words, 1) if words else np.zeros((rows, 0, WORDS_PER_TEXT), np.int64),
        )

    def to_table_batch(
        self, numbers: np.ndarray, codes: np.ndarray, words: np.ndarray
    ) -> TableBatch:
        """Scale the output of `raw_features` and convert it to tensors; numbers are float64."""
        scaled = np.zeros_like(numbers)
        for index, each in enumerate(self.numbers):
            scaled[:, index] = each.curve.transform(numbers[:, index])
        absent = np.isnan(numbers)
        return TableBatch(
            torch.from_numpy(np.where(absent, 0.0, scaled)),
            torch.from_numpy(absent),
            torch.from_numpy(codes),
            torch.from_numpy(words),
        )

    def encode(self, X: Any) -> TableBatch:
        """Encode a checked table; warn about cells that cannot be parsed."""
        columns = self.read(X)
        warn_about_failed_cells(columns)
        return self.to_table_batch(*self.raw_features(columns))

    def to_json(self) -> dict[str, Any]:
        """Return the encoder as JSON-serializable data."""
        return {
            "names": list(self.names),
            "kinds": list(self.kinds),
            "numbers": [each.to_json() for each in self.numbers],
            "categories": [each.to_json() for each in self.categories],
            "texts": [each.to_json() for each in self.texts],
            "date_formats": list(self.date_formats),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TableEncoder":
        """Rebuild an encoder from the output of `to_json`."""
        return cls(
            tuple(data["names"]),
            tuple(data["kinds"]),
            tuple(map(Number.from_json, data["numbers"])),
            tuple(map(Category.from_json, data["categories"])),
            tuple(map(Text.from_json, data["texts"])),
            tuple(data.get("date_formats", ())),
        )


def _build_number(index: int, part: str, values: np.ndarray, weights: np.ndarray) -> Number:
    present = ~np.isnan(values)
    return Number(index, part, Quantiles.from_samples(values[present], weights[present]))
