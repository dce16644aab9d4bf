"""A checked table made ready for a fit: what is taught, what is held out, and how both are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import Cells
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import Column, empty_columns, read_columns, told_kinds
from addnorm.tabular.params import held_out
from addnorm.tabular.training.loop import Sample
from addnorm.tabular.training.row_groups import copies, row_set
from addnorm.tabular.training.targets import Target

REFERENCES = 64
"""Training rows that are kept: what SAINT's rows see at prediction, and what `explain` compares
with."""

EXTREME, LEAST = 40, 30
"""Powers of two: of a largest weight that is scaled, and of the smallest beside it."""


class Given(NamedTuple):
    """A table as it was given to `fit`, checked."""

    X: Any
    weights: np.ndarray
    """Of the rows; those of weight 0 do not exist."""
    times: np.ndarray
    """How many rows each stands for."""

    def real(self) -> "Given":
        """Without rows of weight 0."""
        real = self.weights > 0
        if real.all():
            return self
        return Given(rows_of(self.X, np.flatnonzero(real)), self.weights[real], self.times[real])


@dataclass(frozen=True)
class Lesson:
    """What a model is fitted to."""

    encoder: TableEncoder
    target: Target
    taught: Sample
    """The rows of a pass, some several times."""
    judged: Sample | None
    """The rows held out, where there are any."""
    keep: Cells
    """A few different rows of what is taught."""


def lesson_of(
    chosen: Any,
    given: Given,
    y: np.ndarray,
    *,
    encoder: TableEncoder | None,
    target: Target | None,
    seed: int,
) -> Lesson:
    """Divide the rows, and learn from those that are taught how to read all.

    encoder, target: those of an earlier fit, if they are to be kept

    What is held out teaches nothing: it is read as rows to be predicted are.
    """
    if encoder is None:
        columns = read_columns(given.X, chosen.column_types, times=given.times)
        refuse_empty(columns, chosen.column_types)
    else:
        columns = encoder.read(given.X)
    rows = row_set(
        [column.values for column in columns],
        y,
        weights=sane(given.weights),
        times=given.times,
        seed=derive_seed(seed, "rows"),
    )
    columns, y = some_rows(columns, rows.chosen), y[rows.chosen]
    held = held_out(chosen, y, rows)
    at = np.flatnonzero(held < 1)
    weights = (rows.weights * (1 - held))[at]
    if encoder is None:
        encoder = TableEncoder.of(some_rows(columns, at), weights)
    if target is None:
        target = chosen._target(y[at], weights)
    cells, asked = encoder.cells(*encoder.raw(columns)), target.asked(y)
    # A row that stands for many is shown often, with a part of its weight each time.
    times = copies(weights, (rows.times * (1 - held))[at])
    taught = _sample(cells, asked, weights / times, at).rows(
        torch.arange(len(at)).repeat_interleave(torch.from_numpy(times))
    )
    out = np.flatnonzero(held)
    judged = _sample(cells, asked, (rows.weights * held)[out], out) if len(out) else None
    first = rows.first[held[rows.first] < 1][:REFERENCES]  # they stand in an order by chance
    return Lesson(encoder, target, taught, judged, cells.rows(torch.from_numpy(first)))


def sane(weights: np.ndarray) -> np.ndarray:
    """Weights that float32 can sum: all but extreme ones as they are, those times a power of two so
    that the largest is about 1, and none below 2^-30 of it.

    >>> sane(np.array([1.0, 3.0])), sane(np.array([2.0**1000, 2.0**999]))
    (array([1., 3.]), array([1. , 0.5]))
    """
    exponent = round(np.log2(weights.max()))
    if abs(exponent) >= EXTREME:
        weights = np.ldexp(weights, -exponent)
    return np.maximum(weights, np.ldexp(weights.max(), -LEAST))


def refuse_empty(columns: Sequence[Column], told: Mapping[Any, str] | None = None) -> None:
    """A column without any value has no type, unless it is told."""
    known = told_kinds([column.name for column in columns], told)
    empty = empty_columns([each for place, each in enumerate(columns) if place not in known])
    if empty:
        raise UserError(
            f"Input X contains columns without any value: {', '.join(map(repr, empty))}; "
            "leave them out"
        )


def rows_of(X: Any, index: Any) -> Any:
    """Some rows of a checked table."""
    return X[index] if isinstance(X, np.ndarray) else X.iloc[index]


def some_rows(columns: Sequence[Column], index: np.ndarray) -> list[Column]:
    """Some rows of columns."""
    return [replace(column, values=column.values[index]) for column in columns]


def _sample(cells: Cells, asked: torch.Tensor, weights: np.ndarray, at: np.ndarray) -> Sample:
    index = torch.from_numpy(at)
    return Sample(cells.rows(index), asked[index], torch.from_numpy(weights))
