"""Preparation of a whole table before a fit: target, task, column types, train/test split."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.tabular.columns.reader import read_column, read_columns
from addnorm.tabular.columns.text_parsing import is_missing_text
from addnorm.tabular.dataset import reject_empty_columns

MAX_INTEGER_CLASSES = 20
"""Largest number of distinct integers in a target that is treated as classes."""


def infer_task(y: Any) -> str:
    """Return "classify" for strings, booleans and few distinct integers, else "regress"."""
    column = read_column("target", y)
    if column.kind != "numeric":
        return "classify"
    values = column.values[~np.isnan(column.values)]
    all_integers = bool((values == np.round(values)).all())
    few_values = len(np.unique(values)) <= MAX_INTEGER_CLASSES
    return "classify" if all_integers and few_values else "regress"


def split_target(frame: Any, target: str) -> tuple[Any, Any]:
    """Split a frame into its feature columns and its target column.

    Raises:
        UserError: if the target is unknown, the only column, incomplete, infinite or a datetime
    """
    names = list(frame.columns)
    if target not in names:
        raise UserError(unknown_name_message("target column", target, names))
    if len(names) == 1:
        raise UserError(f"expected feature columns beside the target, got only {target!r}")
    y = frame[target]
    column = read_column(target, y)
    missing = int(y.isna().sum()) + sum(
        isinstance(each, str) and is_missing_text(each) for each in y
    )
    if missing:
        raise UserError(
            f"Input y contains NaN: target {target!r} is missing in {missing} of {len(y)} rows; "
            "drop those rows"
        )
    if column.kind == "datetime":
        raise UserError(
            f"target {target!r}: expected numbers or classes, got datetimes; convert them, for "
            "example to days since a date"
        )
    if column.kind == "numeric" and (infinite := int(np.isnan(column.values).sum())):
        raise UserError(
            f"Input y contains infinity: target {target!r} is infinite in {infinite} of {len(y)} "
            "rows; drop those rows"
        )
    if not all(isinstance(each, str | Real | np.bool_) for each in y):  # decimal.Decimal, time
        y = type(y)(column.values, index=y.index, name=y.name)
    return frame.drop(columns=target), y


def infer_column_types(X: Any, column_types: Mapping[Any, str] | None = None) -> dict[str, str]:
    """Return the type of every column by name, so that all splits of the table are read alike.

    Args:
        X: whole table
        column_types: explicit types that override the inferred ones

    Raises:
        UserError: if a column has no value in the whole table
    """
    columns = read_columns(X, column_types)
    reject_empty_columns(columns)
    return {column.name: column.kind for column in columns}


def split_rows(
    y: Any, fraction: float, *, classify: bool, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of training and test rows of a random split.

    A classification split is stratified if every class has at least two rows and the smaller part
    has more rows than there are classes.

    Raises:
        UserError: too few rows, or a seed that scikit-learn does not accept
    """
    if not 0 <= seed < 2**32:
        raise UserError(f"--seed: expected a number from 0 to {2**32 - 1}, got {seed}")
    if math.ceil(fraction * len(y)) >= len(y):
        raise UserError(
            f"expected enough rows for a test fraction of {fraction:g}, got {len(y)}; use "
            "--test-size 0"
        )
    strata, smaller_part = None, len(y) * min(fraction, 1 - fraction)
    if classify:
        counts = y.value_counts()
        strata = y if counts.min() >= 2 and smaller_part >= len(counts) + 1 else None
    train, test = train_test_split(
        np.arange(len(y)), test_size=fraction, random_state=seed, stratify=strata
    )
    return train, test
