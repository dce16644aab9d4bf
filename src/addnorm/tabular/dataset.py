"""A checked table made ready for a fit: what is taught, what is held out, and how both are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import TableBatch
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import (
    Column,
    empty_columns,
    explicit_column_types,
    read_columns,
)
from addnorm.tabular.params import holdout_fractions
from addnorm.tabular.training.loop import WeightedBatch
from addnorm.tabular.training.row_groups import repeats_per_epoch, unique_rows
from addnorm.tabular.training.targets import Target

MAX_REFERENCE_ROWS = 64
"""Training rows that are kept: what SAINT's rows see at prediction, and what `explain` compares
with."""

EXTREME_EXPONENT, MIN_WEIGHT_EXPONENT = 40, 30
"""Powers of two: of a largest weight that is scaled, and of the smallest beside it."""


class CheckedInput(NamedTuple):
    """A table as it was given to `fit`, checked."""

    X: Any
    weights: np.ndarray
    """Of the rows; those of weight 0 do not exist."""
    multiplicity: np.ndarray
    """How many rows each stands for."""

    def drop_zero_weights(self) -> "CheckedInput":
        """Without rows of weight 0."""
        real = self.weights > 0
        if real.all():
            return self
        return CheckedInput(
            select_rows(self.X, np.flatnonzero(real)), self.weights[real], self.multiplicity[real]
        )


@dataclass(frozen=True)
class FitData:
    """What a model is fitted to."""

    encoder: TableEncoder
    target: Target
    train: WeightedBatch
    """The rows of a pass, some several times."""
    valid: WeightedBatch | None
    """The rows held out, where there are any."""
    reference: TableBatch
    """A few different rows of what is taught."""


def build_fit_data(
    estimator: Any,
    inputs: CheckedInput,
    y: np.ndarray,
    *,
    encoder: TableEncoder | None,
    target: Target | None,
    seed: int,
) -> FitData:
    """Divide the rows, and learn from those that are taught how to read all.

    encoder, target: those of an earlier fit, if they are to be kept

    What is held out teaches nothing: it is read as rows to be predicted are.
    """
    if encoder is None:
        columns = read_columns(inputs.X, estimator.column_types, multiplicity=inputs.multiplicity)
        reject_empty_columns(columns, estimator.column_types)
    else:
        columns = encoder.read(inputs.X)
    rows = unique_rows(
        [column.values for column in columns],
        y,
        weights=rescale_weights(inputs.weights),
        multiplicity=inputs.multiplicity,
        seed=derive_seed(seed, "rows"),
    )
    columns, y = select_column_rows(columns, rows.indices), y[rows.indices]
    held = holdout_fractions(estimator, y, rows)
    at = np.flatnonzero(held < 1)
    weights = (rows.weights * (1 - held))[at]
    if encoder is None:
        encoder = TableEncoder.from_columns(select_column_rows(columns, at), weights)
    if target is None:
        target = estimator._target(y[at], weights)
    cells, asked = encoder.to_table_batch(*encoder.raw_features(columns)), target.encode(y)
    # A row that stands for many is shown often, with a part of its weight each time.
    times = repeats_per_epoch(weights, (rows.multiplicity * (1 - held))[at])
    taught = _make_batch(cells, asked, weights / times, at).rows(
        torch.arange(len(at)).repeat_interleave(torch.from_numpy(times))
    )
    out = np.flatnonzero(held)
    judged = _make_batch(cells, asked, (rows.weights * held)[out], out) if len(out) else None
    first = rows.group_starts[held[rows.group_starts] < 1][
        :MAX_REFERENCE_ROWS
    ]  # they stand in an order by chance
    return FitData(encoder, target, taught, judged, cells.select_rows(torch.from_numpy(first)))


def rescale_weights(weights: np.ndarray) -> np.ndarray:
    """Weights that float32 can sum: all but extreme ones as they are, those times a power of two so
    that the largest is about 1, and none below 2^-30 of it.

    >>> sane(np.array([1.0, 3.0])), sane(np.array([2.0**1000, 2.0**999]))
    (array([1., 3.]), array([1. , 0.5]))
    """
    exponent = round(np.log2(weights.max()))
    if abs(exponent) >= EXTREME_EXPONENT:
        weights = np.ldexp(weights, -exponent)
    return np.maximum(weights, np.ldexp(weights.max(), -MIN_WEIGHT_EXPONENT))


def reject_empty_columns(
    columns: Sequence[Column], column_types: Mapping[Any, str] | None = None
) -> None:
    """A column without any value has no type, unless it is told."""
    known = explicit_column_types([column.name for column in columns], column_types)
    empty = empty_columns([each for place, each in enumerate(columns) if place not in known])
    if empty:
        raise UserError(
            f"Input X contains columns without any value: {', '.join(map(repr, empty))}; "
            "leave them out"
        )


def select_rows(X: Any, index: Any) -> Any:
    """Some rows of a checked table."""
    return X[index] if isinstance(X, np.ndarray) else X.iloc[index]


def select_column_rows(columns: Sequence[Column], index: np.ndarray) -> list[Column]:
    """Some rows of columns."""
    return [replace(column, values=column.values[index]) for column in columns]


def _make_batch(
    cells: TableBatch, targets: torch.Tensor, weights: np.ndarray, rows: np.ndarray
) -> WeightedBatch:
    index = torch.from_numpy(rows)
    return WeightedBatch(cells.select_rows(index), targets[index], torch.from_numpy(weights))
