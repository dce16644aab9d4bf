"""Choice of validation rows: a split of the table, further rows, or folds for bagging."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import GroupKFold, GroupShuffleSplit
from sklearn.utils.validation import check_consistent_length

from addnorm.core.errors import UserError
from addnorm.tabular.training.row_groups import UniqueRows, majority_classes

TRAIN, UNUSED = -1, -2
"""Parts of rows that are never validated on, and of rows that are left out."""


class ValidationRows(NamedTuple):
    """Rows passed to `fit` for validation, checked like the training rows."""

    inputs: Any
    """`CheckedInput` of the rows."""
    y: np.ndarray
    """(rows) class codes or numbers."""


def parse_eval_set(
    eval_set: Any, X_val: Any, y_val: Any, sample_weight_val: Any = None
) -> tuple[Any, Any]:
    """Return X_val and y_val; `eval_set` is LightGBM's spelling, [(X_val, y_val)]."""
    if eval_set is not None:
        if X_val is not None or y_val is not None:
            raise UserError("expected either X_val and y_val or eval_set, got both")
        pairs = [eval_set] if isinstance(eval_set, tuple) else list(eval_set)
        if len(pairs) != 1 or not isinstance(pairs[0], Sequence) or len(pairs[0]) != 2:
            raise UserError(
                f"eval_set: expected one pair, [(X_val, y_val)], got {len(pairs)} elements"
            )
        X_val, y_val = pairs[0]
    if (X_val is None) != (y_val is None):
        given, other = ("X_val", "y_val") if y_val is None else ("y_val", "X_val")
        raise UserError(f"{given} requires {other}: expected both or neither, got only {given}")
    if X_val is None and sample_weight_val is not None:
        raise UserError("sample_weight_val: expected None without X_val and y_val, got weights")
    return X_val, y_val


def assign_parts(estimator: Any, y: np.ndarray, groups: Any, *, seed: int) -> np.ndarray | None:
    """Return the part of each row of the table: its fold, `TRAIN` or `UNUSED`.

    None if the rows are split later, by `holdout_fractions` or `assign_folds`, which keep equal
    rows together.
    """
    rows, split, bagging = len(y), estimator.validation_split, estimator.bagging
    folds = check_bagging(bagging)
    if groups is not None:
        check_consistent_length(y, groups)
        groups = np.unique(np.asarray(groups), return_inverse=True)[1]
    if folds is None and bagging is not None:
        return _parts_of_splits(_split(bagging, y, groups), rows)
    if folds is not None:
        if split is not None:
            raise UserError(
                "validation_split: expected None with bagging, whose folds are the validation rows"
            )
        return (
            None if groups is None else _parts_of_splits(_split(GroupKFold(folds), y, groups), rows)
        )
    if is_splitter(split):
        train, valid = next(iter(_split(split, y, groups)))
        parts = np.full(rows, UNUSED)
        parts[train], parts[valid] = TRAIN, 0
        return parts
    if split is not None and not isinstance(split, Real):
        return _parts_of_indices(split, rows)
    if groups is None:
        return None
    fraction = validation_fraction(estimator)
    splitter = GroupShuffleSplit(1, test_size=fraction, random_state=seed % 2**32)
    return _parts_of_splits(_split(splitter, y, groups), rows)


def validation_fraction(estimator: Any) -> Any:
    """Return the fraction of the rows to hold out: `validation_split` if it is a number."""
    split = estimator.validation_split
    return (
        split
        if isinstance(split, Real) and not isinstance(split, bool)
        else (estimator.validation_fraction)
    )


def is_splitter(value: Any) -> bool:
    """Return whether a value is a splitter of scikit-learn; strings can be split, too."""
    return callable(getattr(value, "split", None)) and hasattr(value, "get_n_splits")


def check_bagging(bagging: Any) -> int | None:
    """Return the number of folds; None without bagging or with a splitter."""
    if bagging is None or is_splitter(bagging):
        return None
    if not isinstance(bagging, Integral) or isinstance(bagging, bool) or bagging < 2:
        raise UserError(
            f"bagging: expected None, a number of folds >= 2 or a splitter, got {bagging!r}"
        )
    return int(bagging)


def assign_folds(rows: UniqueRows, classes: np.ndarray, folds: int) -> np.ndarray:
    """Return the fold of each distinct row, stratified; rows with equal features share a fold."""
    if rows.num_groups < 2 * folds:
        raise UserError(
            f"bagging: expected at least {2 * folds} distinct rows for {folds} folds, got "
            f"{rows.num_groups}"
        )
    strata = majority_classes(rows, classes)
    order = np.argsort(strata, kind="stable")  # the groups are in random order
    fold_of_group = np.empty(rows.num_groups, dtype=np.int64)
    fold_of_group[order] = np.arange(rows.num_groups) % folds
    return fold_of_group[rows.groups]


def _split(splitter: Any, y: np.ndarray, groups: np.ndarray | None) -> Any:
    try:
        return list(splitter.split(np.zeros((len(y), 1)), y, groups))
    except ValueError as error:  # raised by scikit-learn
        raise UserError(f"{type(splitter).__name__}: {' '.join(str(error).split())}") from None


def _parts_of_splits(splits: Any, rows: int) -> np.ndarray:
    """Return the fold of each row; without it, a row trains all models."""
    parts = np.full(rows, TRAIN)
    for fold, (train, valid) in enumerate(splits):
        if len(train) + len(valid) != rows or (parts[valid] != TRAIN).any():
            raise UserError(
                "bagging: expected a splitter whose test parts are disjoint and whose training "
                "part is all other rows, such as KFold or GroupKFold; use validation_split for "
                "other splits"
            )
        parts[valid] = fold
    return parts


def _parts_of_indices(split: Any, rows: int) -> np.ndarray:
    index = np.asarray(split)
    parts = np.full(rows, TRAIN)
    if index.dtype == bool and index.shape == (rows,):
        parts[index] = 0
    elif index.ndim == 1 and index.dtype.kind in "iu" and len(index):
        if index.min() < -rows or index.max() >= rows:
            raise UserError(
                f"validation_split: expected indices below {rows}, the number of rows, got "
                f"{index.max()}"
            )
        parts[index] = 0
    else:
        raise UserError(
            "validation_split: expected a fraction, indices or a mask of the validation rows, or a "
            f"splitter of scikit-learn, got {split!r}"
        )
    if (parts == 0).all() or not (parts == 0).any():
        raise UserError(
            "validation_split: expected some rows for training and some for validation, got "
            f"{int((parts == 0).sum())} of {rows} rows for validation"
        )
    return parts
