"""The encoder of columns: learns from training rows what a model must know to read any."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from addnorm.models.tabular.table_batch import TableBatch
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
    """From columns to cells."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    texts: tuple[Text, ...]

    @classmethod
    def from_columns(cls, columns: Sequence[Column], weights: np.ndarray) -> "TableEncoder":
        """Learn from training rows."""
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
        )

    @property
    def sources(self) -> list[int]:
        """The column of each feature of a model, in its order."""
        features: list[Number | Category | Text] = [*self.numbers, *self.categories, *self.texts]
        return [each.column for each in features]

    @property
    def layout(self) -> dict[str, Any]:
        """What a model must know of the table: fields of a `TableConfig`."""
        return {
            "numbers": len(self.numbers),
            "categories": tuple(each.size for each in self.categories),
            "texts": tuple(each.size for each in self.texts),
        }

    def read(self, X: Any) -> list[Column]:
        """The columns of another table, each as the kind it was at fit."""
        return [
            read_column(name, values, kind)
            for (_, values), name, kind in zip(raw_columns(X), self.names, self.kinds, strict=True)
        ]

    def raw_features(self, columns: Sequence[Column]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers before scaling, codes and words: (rows, numbers), (rows, categories) and
        (rows, texts, slots).
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
        """What a model reads, of what `raw` returned; numbers in float64."""
        scaled = np.zeros_like(numbers)
        for place, each in enumerate(self.numbers):
            scaled[:, place] = each.curve.transform(numbers[:, place])
        absent = np.isnan(numbers)
        return TableBatch(
            torch.from_numpy(np.where(absent, 0.0, scaled)),
            torch.from_numpy(absent),
            torch.from_numpy(codes),
            torch.from_numpy(words),
        )

    def encode(self, X: Any) -> TableBatch:
        """A table that was checked, as cells."""
        return self.to_table_batch(*self.raw_features(self.read(X)))

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "names": list(self.names),
            "kinds": list(self.kinds),
            "numbers": [each.to_json() for each in self.numbers],
            "categories": [each.to_json() for each in self.categories],
            "texts": [each.to_json() for each in self.texts],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TableEncoder":
        """From what `to_plain` made."""
        return cls(
            tuple(data["names"]),
            tuple(data["kinds"]),
            tuple(map(Number.from_json, data["numbers"])),
            tuple(map(Category.from_json, data["categories"])),
            tuple(map(Text.from_json, data["texts"])),
        )


def _build_number(index: int, part: str, values: np.ndarray, weights: np.ndarray) -> Number:
    here = ~np.isnan(values)
    return Number(index, part, Quantiles.from_samples(values[here], weights[here]))
