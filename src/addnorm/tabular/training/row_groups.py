"""Rows as a weighted set: their order and their repetition change nothing.

A training sees each different row once, with the sum of its weights, in an order that the rows
themselves and the seed decide. So three equal rows and one row of weight 3 are the same to the last
bit, a row of weight 0 is none, and a shuffled table gives the same model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

TARGET_EPOCH_ROWS = 4096
"""Rows of a pass, about, where fewer different rows stand for more."""
HASH_MULTIPLIERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True)
class UniqueRows:
    """Different rows, those of equal cells beside one another, else in an order by chance."""

    indices: np.ndarray
    """Where each stands in the table, once."""
    weights: np.ndarray
    """Its weight in all."""
    multiplicity: np.ndarray
    """How many rows it stands for."""
    groups: np.ndarray
    """A number for each different set of cells, rising from 0: rows that differ in their target
    alone have one."""

    @property
    def num_groups(self) -> int:
        """Different sets of cells."""
        return int(self.groups[-1]) + 1

    @property
    def group_starts(self) -> np.ndarray:
        """The first row of every group."""
        return np.flatnonzero(np.diff(self.groups, prepend=-1))


def unique_rows(
    cells: Sequence[np.ndarray],
    y: np.ndarray | None,
    *,
    weights: np.ndarray,
    multiplicity: np.ndarray,
    seed: int,
) -> UniqueRows:
    """The different rows of columns that stand side by side, and of their target.

    cells: each (rows), numbers or texts and None
    """
    parts = [_to_numeric(part) for part in cells]
    same = [_hash_rows(parts, seed, mix) for mix in HASH_MULTIPLIERS]
    whole = same if y is None else [_hash_rows([*parts, y], seed, mix) for mix in HASH_MULTIPLIERS]
    order = np.lexsort([*whole, *same])
    groups, rows = (_mark_changes([mark[order] for mark in marks]) for marks in (same, whole))
    starts = np.flatnonzero(groups | rows)
    return UniqueRows(
        order[starts],
        np.add.reduceat(weights[order], starts),
        np.add.reduceat(multiplicity[order], starts),
        np.cumsum(groups)[starts] - 1,
    )


def _mark_changes(marks: Sequence[np.ndarray]) -> np.ndarray:
    """Where marks are others than before."""
    other = np.zeros(len(marks[0]), dtype=bool)
    other[0] = True
    for mark in marks:
        other[1:] |= mark[1:] != mark[:-1]
    return other


def _to_numeric(values: np.ndarray) -> np.ndarray:
    """Texts as numbers that hang on nothing but the text."""
    if values.dtype != object:
        return values
    known = {text: _hash_text(text) for text in set(values)}
    return np.array([known[text] for text in values], dtype=np.uint64)


def _hash_text(text: str | None) -> int:
    data = b"" if text is None else b"+" + text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _hash_rows(parts: Sequence[np.ndarray], seed: int, mix: np.uint64) -> np.ndarray:
    mark = np.full(len(parts[0]), np.uint64(seed % 2**63) ^ mix)
    for part in parts:
        if part.dtype.kind == "f":
            part = np.where(np.isnan(part), np.nan, part + 0.0).astype(np.float64)  # one NaN
        mark = (mark ^ np.ascontiguousarray(part).view(np.uint64)) * mix
        mark ^= mark >> np.uint64(29)
        mark *= HASH_MULTIPLIERS[0]
        mark ^= mark >> np.uint64(32)
    return mark


def row_multiplicity(weights: np.ndarray) -> np.ndarray:
    """How many rows each row stands for: its weight, where all are whole numbers (below 2^53, where
    floats are nothing else), else itself.

    >>> times_of(np.array([1.0, 3.0])), times_of(np.array([0.5, 3.0]))
    (array([1., 3.]), array([1., 1.]))
    """
    counted = bool((weights == np.round(weights)).all()) and weights.max() < 2**53
    return weights.copy() if counted else np.ones_like(weights)


def repeats_per_epoch(weights: np.ndarray, multiplicity: np.ndarray) -> np.ndarray:
    """How often a pass over the rows shows each: in proportion to its weight, once at least.

    A row that stands for hundreds is shown often, with a part of its weight each time, instead of
    once in a huge step. A pass is about as long as there are different rows; where fewer than 4096
    stand for more, it is as long as those, up to 4096.

    times: how many rows each stands for

    >>> heavy = np.array([1.0, 1.0, 1.0, 5.0])
    >>> copies(heavy, heavy), copies(heavy, np.ones(4))
    (array([1, 1, 1, 5]), array([1, 1, 1, 2]))
    """
    rows = len(weights)
    length = min(max(float(multiplicity.sum()), rows), max(rows, TARGET_EPOCH_ROWS))
    return np.maximum(1, np.round(weights * (length / float(weights.sum())))).astype(np.int64)


def split_holdout(rows: UniqueRows, classes: np.ndarray, fraction: float) -> np.ndarray:
    """How much of each row is held out, from 0 to 1: in all, at most that share of the weight.

    Rows of equal cells are held out together or not at all, so that nothing that is held out was
    met in training; of every class in proportion, and never its last. Only cells that come back
    1 / share times and more with several targets are divided: a target that is noisy at the same
    place is known from both sides, or from none.

    classes: (rows), the class of each row, or zeros
    """
    held = np.zeros(len(classes))
    several = np.bincount(rows.groups) > 1
    often = several & (np.bincount(rows.groups, rows.multiplicity) * fraction >= 1)
    noisy = often[rows.groups]
    taken = np.diff(np.floor(fraction * np.cumsum(rows.multiplicity[noisy])), prepend=0.0)
    held[noisy] = taken / rows.multiplicity[noisy]
    mass = np.bincount(rows.groups, rows.weights)
    held += _select_groups(mass, _majority_class(rows, classes), np.flatnonzero(~often), fraction)[
        rows.groups
    ]
    for each in np.unique(classes):
        own = classes == each
        if (held[own] == 1).all():
            held[rows.groups == rows.groups[own][0]] = 0
    return held


def _majority_class(rows: UniqueRows, classes: np.ndarray) -> np.ndarray:
    """The class of the most weight in every group."""
    order = np.lexsort((rows.weights, rows.groups))
    last = np.flatnonzero(np.diff(rows.groups[order], append=rows.num_groups))
    return classes[order][last]


def _select_groups(
    mass: np.ndarray, classes: np.ndarray, candidates: np.ndarray, fraction: float
) -> np.ndarray:
    """Which groups are held out, 1.0 there: of every class the first that have room.

    What one class leaves of its room, since a row has one size, may double that of the next.
    """
    held, left = np.zeros(len(mass)), 0.0
    for each in np.unique(classes[candidates]):
        own = candidates[classes[candidates] == each]
        fair = fraction * mass[own].sum()
        room = fair + min(left, fair)
        left += fair
        least = mass[own].min()
        for group in own[:-1]:
            if room < least:
                break
            if mass[group] <= room:
                held[group] = 1.0
                room -= mass[group]
                left -= mass[group]
    return held
