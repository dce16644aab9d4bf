"""A whole table before any fit: its target, what is asked of it, types of columns, parts."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.tabular.columns.reader import read_column, read_columns
from addnorm.tabular.dataset import reject_empty_columns

MAX_INTEGER_CLASSES = 20
"""Different whole numbers up to which a target is taken for classes."""


def infer_task(y: Any) -> str:
    """`classify` for texts, truths and a few whole numbers, else `regress`."""
    column = read_column("target", y)
    if column.kind != "numeric":
        return "classify"
    values = column.values[~np.isnan(column.values)]
    whole = bool((values == np.round(values)).all())
    return "classify" if whole and len(np.unique(values)) <= MAX_INTEGER_CLASSES else "regress"


def split_target(frame: Any, target: str) -> tuple[Any, Any]:
    """The columns to learn from, and the target, of a frame."""
    names = list(frame.columns)
    if target not in names:
        raise UserError(unknown_name_message("target column", target, names))
    if len(names) == 1:
        raise UserError(f"{target!r} is the only column; wanted others to predict it from")
    y = frame[target]
    column, holes = read_column(target, y), int(y.isna().sum())
    if holes:
        raise UserError(
            f"Input y contains NaN: the target {target!r} is absent in {holes} of {len(y)} rows; "
            "leave those rows out"
        )
    if column.kind == "datetime":
        raise UserError(
            f"the target {target!r} holds moments; wanted numbers or classes: make it days since a "
            "date, say"
        )
    if column.kind == "numeric" and (wild := int(np.isnan(column.values).sum())):
        raise UserError(
            f"Input y contains infinity: the target {target!r} is infinite in {wild} of {len(y)} "
            "rows; leave those rows out"
        )
    if not all(isinstance(each, str | Real | np.bool_) for each in y):  # decimals, times of day
        y = type(y)(column.values, index=y.index, name=y.name)
    return frame.drop(columns=target), y


def infer_column_types(X: Any, column_types: Mapping[Any, str] | None = None) -> dict[str, str]:
    """The type of every column of a whole table, by name, so that all its parts are read alike.

    told: types that are not as they look. A column without any value in the whole table is refused.
    """
    columns = read_columns(X, column_types)
    reject_empty_columns(columns)
    return {column.name: column.kind for column in columns}


def split_rows(
    y: Any, fraction: float, *, classify: bool, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows stay and which are held out, by chance; each class alike, where all have rows
    enough and the smaller part has room for all.
    """
    if math.ceil(fraction * len(y)) >= len(y):
        raise UserError(
            f"too few rows ({len(y)}) to hold out {fraction:g} of them; say --holdout 0"
        )
    alike, smaller = None, len(y) * min(fraction, 1 - fraction)
    if classify:
        counts = y.value_counts()
        alike = y if counts.min() >= 2 and smaller >= len(counts) + 1 else None
    stay, held = train_test_split(
        np.arange(len(y)), test_size=fraction, random_state=seed, stratify=alike
    )
    return stay, held
