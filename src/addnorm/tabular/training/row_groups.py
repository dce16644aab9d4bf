"""Merging of equal rows, their weights, and the validation split.

scikit-learn expects that a row of weight 3 is equivalent to three equal rows, and a row of weight 0
to no row. Here this holds bit for bit. Before training, equal rows are merged into one row with the
sum of their weights, and sorted by a hash of their cells and the seed. The order of the table
therefore does not matter either.

For example, the rows `(a, 1), (b, 1), (a, 1), (a, 0)` of one feature and a target become three
merged rows: `(a, 1)` of weight 2, `(a, 0)` and `(b, 1)`. The first two have equal features, so they
form one group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

TARGET_EPOCH_ROWS = 4096
"""Approximate rows per epoch of a table with fewer distinct rows, if they are repeated enough."""
HASH_MULTIPLIERS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True)
class UniqueRows:
    """Distinct rows in pseudo-random order; rows of one group (equal features) are adjacent."""

    indices: np.ndarray
    """(distinct rows) index of one occurrence in the table."""
    weights: np.ndarray
    """(distinct rows) total weight."""
    multiplicity: np.ndarray
    """(distinct rows) number of table rows that are represented."""
    groups: np.ndarray
    """(distinct rows) group number, increasing from 0. Rows with equal features and different
    targets are in one group."""
    inverse: np.ndarray
    """(table rows) index of the distinct row that represents each row."""

    @property
    def num_groups(self) -> int:
        """Number of distinct feature rows."""
        return int(self.groups[-1]) + 1

    @property
    def group_starts(self) -> np.ndarray:
        """(groups) position of the first row of every group."""
        return np.flatnonzero(np.diff(self.groups, prepend=-1))


def unique_rows(
    cells: Sequence[np.ndarray],
    y: np.ndarray | None,
    *,
    weights: np.ndarray,
    multiplicity: np.ndarray,
    seed: int,
) -> UniqueRows:
    """Merge equal rows.

    Args:
        cells: columns, each (rows), of numbers or of strings and None
        y: (rows) or (rows, targets); None to compare the features alone
        weights: (rows) positive weights
        multiplicity: (rows) number of rows that each row represents
        seed: seed of the order
    """
    columns = [_to_numeric(column) for column in cells]
    # Two independent 64-bit hashes, so that unequal rows practically never collide.
    features = [_hash_rows(columns, seed, mix) for mix in HASH_MULTIPLIERS]
    rows = features
    if y is not None:
        rows = [_hash_rows([*columns, *np.atleast_2d(y.T)], seed, mix) for mix in HASH_MULTIPLIERS]
    order = np.lexsort([*rows, *features])  # by features first, so that groups are contiguous
    new_group, new_row = (
        _mark_changes([each[order] for each in hashes]) for hashes in (features, rows)
    )
    starts = np.flatnonzero(new_group | new_row)
    inverse = np.empty(len(order), dtype=np.int64)
    inverse[order] = np.cumsum(new_group | new_row) - 1
    return UniqueRows(
        order[starts],
        np.add.reduceat(weights[order], starts),
        np.add.reduceat(multiplicity[order], starts),
        np.cumsum(new_group)[starts] - 1,
        inverse,
    )


def _mark_changes(hashes: Sequence[np.ndarray]) -> np.ndarray:
    """Return a mask of the positions where any hash differs from its predecessor."""
    changed = np.zeros(len(hashes[0]), dtype=bool)
    changed[0] = True
    for each in hashes:
        changed[1:] |= each[1:] != each[:-1]
    return changed


def _to_numeric(values: np.ndarray) -> np.ndarray:
    """Replace strings by stable 64-bit hashes; Python's own hash changes between processes."""
    if values.dtype != object:
        return values
    hashes = {text: _hash_text(text) for text in set(values)}
    return np.array([hashes[text] for text in values], dtype=np.uint64)


def _hash_text(text: str | None) -> int:
    data = b"" if text is None else b"+" + text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _hash_rows(columns: Sequence[np.ndarray], seed: int, mix: np.uint64) -> np.ndarray:
    hashes = np.full(len(columns[0]), np.uint64(seed % 2**63) ^ mix)
    for column in columns:
        if column.dtype.kind == "f":  # give NaN and zero one bit pattern each
            column = np.where(np.isnan(column), np.nan, column + 0.0).astype(np.float64)
        hashes = (hashes ^ np.ascontiguousarray(column).view(np.uint64)) * mix
        hashes ^= hashes >> np.uint64(29)
        hashes *= HASH_MULTIPLIERS[0]
        hashes ^= hashes >> np.uint64(32)
    return hashes


def row_multiplicity(weights: np.ndarray) -> np.ndarray:
    """Return the number of rows that each weighted row represents.

    Integer weights are counts. If any weight is fractional, each row represents itself. The same
    holds from 2^53, where every float is an integer.

    >>> row_multiplicity(np.array([1.0, 3.0])), row_multiplicity(np.array([0.5, 3.0]))
    (array([1., 3.]), array([1., 1.]))
    """
    are_counts = bool((weights == np.round(weights)).all()) and weights.max() < 2**53
    return weights.copy() if are_counts else np.ones_like(weights)


def repeats_per_epoch(weights: np.ndarray, multiplicity: np.ndarray) -> np.ndarray:
    """Return how often each row occurs in an epoch: in proportion to its weight, at least once.

    A heavy row is repeated with a fraction of its weight, because a single occurrence would cause
    one huge step. An epoch has about as many rows as there are distinct rows. If the distinct rows
    represent more rows, the epoch grows with them up to 4096.

    >>> heavy = np.array([1.0, 1.0, 1.0, 5.0])
    >>> repeats_per_epoch(heavy, heavy), repeats_per_epoch(heavy, np.ones(4))
    (array([1, 1, 1, 5]), array([1, 1, 1, 2]))
    """
    rows = len(weights)
    length = min(max(float(multiplicity.sum()), rows), max(rows, TARGET_EPOCH_ROWS))
    return np.maximum(1, np.round(weights * (length / float(weights.sum())))).astype(np.int64)


def split_holdout(rows: UniqueRows, classes: np.ndarray, fraction: float) -> np.ndarray:
    """Return the fraction of each row that is held out for validation, from 0 to 1.

    The held-out weight is at most `fraction` of the total, stratified by class, and never all of a
    class. A group (rows with equal features) is held out as a whole, so that no validation row has
    been seen in training. The exception are groups with several targets that occur at least
    1 / fraction times. Their rows are split in proportion: otherwise training and validation would
    see different targets for the same features.

    Args:
        rows: distinct rows
        classes: (distinct rows) class of each row; zeros for a regression
        fraction: fraction of the weight to hold out
    """
    held_out = np.zeros(len(classes))
    has_several_targets = np.bincount(rows.groups) > 1
    is_split = has_several_targets & (np.bincount(rows.groups, rows.multiplicity) * fraction >= 1)
    split_rows = is_split[rows.groups]
    # Rounding the running total down spreads whole rows evenly over the merged ones.
    counts = np.diff(np.floor(fraction * np.cumsum(rows.multiplicity[split_rows])), prepend=0.0)
    held_out[split_rows] = counts / rows.multiplicity[split_rows]
    mass = np.bincount(rows.groups, rows.weights)
    whole_groups = _select_groups(
        mass, majority_classes(rows, classes), np.flatnonzero(~is_split), fraction
    )
    held_out += whole_groups[rows.groups]
    for each in np.unique(classes):
        own = classes == each
        if (held_out[own] == 1).all():  # return one group of a class that lost all its rows
            held_out[rows.groups == rows.groups[own][0]] = 0
    return held_out


def majority_classes(rows: UniqueRows, classes: np.ndarray) -> np.ndarray:
    """Return the class of the heaviest row of every group."""
    order = np.lexsort((rows.weights, rows.groups))
    last = np.flatnonzero(np.diff(rows.groups[order], append=rows.num_groups))
    return classes[order][last]


def _select_groups(
    mass: np.ndarray, classes: np.ndarray, candidates: np.ndarray, fraction: float
) -> np.ndarray:
    """Return 1.0 for the groups to hold out: greedily, within the budget of each class.

    Groups cannot be divided, so a class rarely uses its whole budget. The remainder is passed to
    the next class, which may use up to twice its own budget.
    """
    held_out, remainder = np.zeros(len(mass)), 0.0
    for each in np.unique(classes[candidates]):
        own = candidates[classes[candidates] == each]
        own_budget = fraction * mass[own].sum()
        budget = own_budget + min(remainder, own_budget)
        remainder += own_budget
        smallest = mass[own].min()
        for group in own[:-1]:  # never the last group of a class
            if budget < smallest:
                break
            if mass[group] <= budget:
                held_out[group] = 1.0
                budget -= mass[group]
                remainder -= mass[group]
    return held_out
