"""Rows as a weighted set: their order and their repetition change nothing.

A training sees each different row once, with the sum of its weights, in an order that the rows
themselves and the seed decide. So three equal rows and one row of weight 3 are the same to the last
bit, a row of weight 0 is none, no row stands on both sides of the split, and a shuffled table gives
the same model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LONG = 4096
"""Rows of a pass, about, where fewer different rows stand for more."""
MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True)
class RowSet:
    """Different rows."""

    chosen: np.ndarray
    """Where each stands in the table, once."""
    weights: np.ndarray
    """Its weight in all."""


def row_set(parts: Sequence[np.ndarray], weights: np.ndarray, *, seed: int) -> RowSet:
    """The different rows of arrays of numbers that stand side by side, (rows, ...)."""
    marks = [_fingerprint(parts, seed, mix) for mix in MIX]
    order = np.lexsort(marks)
    first, second = (mark[order] for mark in marks)
    starts = np.flatnonzero(
        np.concatenate(([True], (first[1:] != first[:-1]) | (second[1:] != second[:-1])))
    )
    return RowSet(order[starts], np.add.reduceat(weights[order], starts))


def _fingerprint(parts: Sequence[np.ndarray], seed: int, mix: np.uint64) -> np.ndarray:
    rows = len(parts[0])
    mark = np.full(rows, np.uint64(seed % 2**63) ^ mix)
    for part in parts:
        flat = np.ascontiguousarray(part.reshape(rows, -1).T)
        if flat.dtype.kind == "f":
            flat = np.where(np.isnan(flat), np.nan, flat + 0.0).astype(np.float64)  # one NaN
        for column in flat:
            mark = (mark ^ column.view(np.uint64)) * mix
            mark ^= mark >> np.uint64(29)
            mark *= MIX[0]
            mark ^= mark >> np.uint64(32)
    return mark


def copies(weights: np.ndarray) -> np.ndarray:
    """How often a pass over the rows shows each: in proportion to its weight, once at least.

    A row that stands for hundreds is shown often, with a part of its weight each time, instead of
    once in a huge step. A pass is about as long as there are different rows; where fewer than 4096
    stand for more, that is where all weights are whole numbers, it is as long as those, up to 4096.

    >>> copies(np.array([1.0, 1.0, 1.0, 5.0])), copies(np.array([0.1, 0.1, 0.1, 0.5]))
    (array([1, 1, 1, 5]), array([1, 1, 1, 2]))
    """
    total, rows = float(weights.sum()), len(weights)
    counted = bool((weights == np.round(weights)).all())
    length = min(max(total, rows), max(rows, LONG)) if counted else rows
    return np.maximum(1, np.round(weights * (length / total))).astype(np.int64)


def split(groups: np.ndarray, weights: np.ndarray, share: float) -> np.ndarray:
    """Which rows are held out: of every group its first, up to that share of its weight; the last
    row of a group never.

    groups: (rows), the class of each row, or zeros
    """
    held = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        before = np.cumsum(weights[rows]) - weights[rows]
        held[rows] = before < share * weights[rows].sum()
        held[rows[-1]] = False
        if len(rows) * share < 0.5:  # fewer than half a row: none
            held[rows] = False
    return held
