"""Training data of one fit: encoded training rows, validation rows and reference rows.

`build_fit_data` turns a checked table into tensors. Equal rows are merged into one weighted row, a
fraction of the rows is held out for validation, and the encoder and the target scaling are computed
from the training rows alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import TableBatch
from addnorm.tabular.columns.cell_warnings import warn_about_cells, warn_about_shift
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import (
    Column,
    empty_columns,
    explicit_column_types,
    raw_columns,
    read_columns,
)
from addnorm.tabular.params import holdout_fractions
from addnorm.tabular.training.loop import WeightedBatch
from addnorm.tabular.training.row_groups import UniqueRows, repeats_per_epoch, unique_rows
from addnorm.tabular.training.targets import Target
from addnorm.tabular.validation import ValidationRows, assign_folds, check_bagging

MAX_REFERENCE_ROWS = 64
"""Training rows stored with the model: SAINT attends to them at prediction time, and `explain`
takes replacement cells from them."""

EXTREME_EXPONENT, MIN_WEIGHT_EXPONENT = 40, 30
"""Weights are rescaled if the largest is beyond 2^±40; none may be below 2^-30 of the largest."""


class CheckedInput(NamedTuple):
    """Validated table, sample weights and multiplicities passed to `fit`."""

    X: Any
    weights: np.ndarray
    """(rows), weight of each row; rows of weight 0 are ignored."""
    multiplicity: np.ndarray
    """(rows), number of rows that each row represents; see `row_multiplicity`."""

    def drop_zero_weights(self) -> "CheckedInput":
        """Return a copy without the rows of weight 0."""
        positive = self.weights > 0
        if positive.all():
            return self
        return self.select(positive)

    def select(self, mask: np.ndarray) -> "CheckedInput":
        """Return the rows at a mask."""
        return CheckedInput(
            select_rows(self.X, np.flatnonzero(mask)), self.weights[mask], self.multiplicity[mask]
        )


class Fold(NamedTuple):
    """Training rows of one network, and the rows that its best epoch is chosen on."""

    train: WeightedBatch
    """Rows of one epoch; heavy rows occur several times."""
    valid: WeightedBatch | None
    """Validation rows, or None without early stopping."""
    valid_index: np.ndarray
    """Indices of the validation rows among the distinct rows."""


@dataclass(frozen=True)
class FitData:
    """Encoder, target scaling and encoded rows of one fit."""

    encoder: TableEncoder
    target: Target
    folds: tuple[Fold, ...]
    """One fold for each network: several with bagging, else one."""
    reference: TableBatch
    """At most `MAX_REFERENCE_ROWS` distinct training rows."""
    inverse: np.ndarray
    """(table rows) index of the distinct row that represents each row."""
    distinct_rows: int
    """Number of rows that differ in their features."""


def build_fit_data(
    estimator: Any,
    inputs: CheckedInput,
    y: np.ndarray,
    *,
    encoder: TableEncoder | None,
    target: Target | None,
    seed: int,
    parts: np.ndarray | None = None,
    valid_rows: ValidationRows | None = None,
    hold_out: bool = True,
) -> FitData:
    """Split the rows, fit encoder and target to the training part, and encode all rows.

    Validation rows do not influence the encoder or the target; they are encoded like new rows. With
    bagging, every row trains some network, so that all rows do.

    Args:
        estimator: supplies column types, validation settings and the target
        inputs: checked table with positive weights
        y: (rows) class codes, or (rows) or (rows, targets) numbers
        encoder: encoder to reuse (warm start or pre-training); fitted if None
        target: target to reuse (warm start); fitted if None
        seed: seed of the row order
        parts: (rows) fold or part of each row, see `assign_parts`; chosen here if None
        valid_rows: rows to validate on instead of rows of the table
        hold_out: whether to choose validation rows
    """
    if encoder is None:
        columns = read_columns(inputs.X, estimator.column_types, multiplicity=inputs.multiplicity)
        reject_empty_columns(columns, estimator.column_types)
        warn_about_cells(columns)
    else:
        columns = encoder.read(inputs.X)
        warn_about_shift(encoder, columns)
    keys = [column.values for column in columns]
    if parts is not None:  # rows of different parts must not be merged
        keys = [*keys, parts.astype(np.float64)]
    rows = unique_rows(
        keys,
        y,
        weights=rescale_weights(inputs.weights),
        multiplicity=inputs.multiplicity,
        seed=derive_seed(seed, "rows"),
    )
    columns, y = select_column_rows(columns, rows.indices), y[rows.indices]
    bagged = estimator.bagging is not None
    held_out = [np.zeros(len(y))]  # a merged row may be held out in part
    if hold_out and valid_rows is None:
        folds = check_bagging(estimator.bagging)
        fold_of_row = None if parts is None else parts[rows.indices]
        if fold_of_row is None and folds is not None:
            fold_of_row = assign_folds(rows, estimator._strata(y), folds)
        if fold_of_row is None:
            held_out = [holdout_fractions(estimator, y, rows)]
        else:
            numbers = range(int(fold_of_row.max()) + 1)
            held_out = [(fold_of_row == fold).astype(float) for fold in numbers]
    never_trained = np.zeros(len(y)) if bagged else held_out[0]
    train_index = np.flatnonzero(never_trained < 1)
    weights = (rows.weights * (1 - never_trained))[train_index]
    if encoder is None:
        encoder = TableEncoder.from_columns(select_column_rows(columns, train_index), weights)
    if target is None:
        target = estimator._target(y[train_index], weights)
    cells, targets = encoder.to_table_batch(*encoder.raw_features(columns)), target.encode(y)
    batches = [_make_fold(cells, targets, rows, each) for each in held_out]
    if valid_rows is not None:
        valid = WeightedBatch(
            encoder.encode(valid_rows.inputs.X),
            target.encode(valid_rows.y),
            torch.from_numpy(rescale_weights(valid_rows.inputs.weights)),
        )
        batches = [batches[0]._replace(valid=valid)]
    # The rows are in random order, so the first distinct ones are a random sample.
    starts = rows.group_starts
    reference = starts[never_trained[starts] < 1][:MAX_REFERENCE_ROWS]
    reference_cells = cells.select_rows(torch.from_numpy(reference))
    return FitData(encoder, target, tuple(batches), reference_cells, rows.inverse, rows.num_groups)


def _make_fold(
    cells: TableBatch, targets: torch.Tensor, rows: UniqueRows, held_out: np.ndarray
) -> Fold:
    """Return the training and validation rows for the fractions that are held out."""
    train_index, valid_index = np.flatnonzero(held_out < 1), np.flatnonzero(held_out)
    weights = (rows.weights * (1 - held_out))[train_index]
    # A heavy row occurs several times in an epoch, with a fraction of its weight each time.
    repeats = repeats_per_epoch(weights, (rows.multiplicity * (1 - held_out))[train_index])
    train = _make_batch(cells, targets, weights / repeats, train_index).rows(
        torch.arange(len(train_index)).repeat_interleave(torch.from_numpy(repeats))
    )
    valid = None
    if len(valid_index):
        valid = _make_batch(cells, targets, (rows.weights * held_out)[valid_index], valid_index)
    return Fold(train, valid, valid_index)


def rescale_weights(weights: np.ndarray) -> np.ndarray:
    """Return weights whose sums are safe in float32.

    Ordinary weights are unchanged. If the largest is extreme, all are multiplied by a power of two
    that makes it about 1. Weights below 2^-30 of the largest are raised to that value.

    >>> rescale_weights(np.array([1.0, 3.0])), rescale_weights(np.array([2.0**1000, 2.0**999]))
    (array([1., 3.]), array([1. , 0.5]))
    """
    exponent = round(np.log2(weights.max()))
    if abs(exponent) >= EXTREME_EXPONENT:
        weights = np.ldexp(weights, -exponent)
    return np.maximum(weights, np.ldexp(weights.max(), -MIN_WEIGHT_EXPONENT))


def reject_empty_columns(
    columns: Sequence[Column], column_types: Mapping[Any, str] | None = None
) -> None:
    """Raise `UserError` for columns without any value whose type is not given explicitly."""
    explicit = explicit_column_types([column.name for column in columns], column_types)
    empty = empty_columns([each for index, each in enumerate(columns) if index not in explicit])
    if empty:
        raise UserError(
            f"X: expected at least one value in every column, got columns without any value: "
            f"{', '.join(map(repr, empty))}; drop them or give their type in column_types"
        )


def check_column_names(encoder: TableEncoder, X: Any, origin: str) -> None:
    """Raise `UserError` if a table does not have the columns of an earlier fit or pre-training."""
    names = tuple(name for name, _ in raw_columns(X))
    if encoder.names != names:
        raise UserError(
            f"X: expected the columns of the {origin} ({', '.join(encoder.names)}), got "
            f"{', '.join(names)}"
        )


def select_rows(X: Any, index: Any) -> Any:
    """Select rows of a checked table by index or slice."""
    return X.iloc[index] if hasattr(X, "iloc") else X[index]


def select_column_rows(columns: Sequence[Column], index: np.ndarray) -> list[Column]:
    """Select rows of each column by index."""
    return [replace(column, values=column.values[index]) for column in columns]


def _make_batch(
    cells: TableBatch, targets: torch.Tensor, weights: np.ndarray, rows: np.ndarray
) -> WeightedBatch:
    index = torch.from_numpy(rows)
    return WeightedBatch(cells.select_rows(index), targets[index], torch.from_numpy(weights))
