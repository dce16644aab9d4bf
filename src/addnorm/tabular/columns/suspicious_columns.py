"""Columns that look like row numbers or keys, or that give the target away."""

from collections.abc import Sequence

import numpy as np

from addnorm.tabular.columns.reader import Column

MIN_ROWS = 50
"""Smallest number of rows to judge; in small tables such patterns occur by chance."""
MIN_ROWS_PER_VALUE = 5
"""Smallest mean number of rows per value for which values that determine the class are reported."""
MIN_CORRELATION = 0.9999
"""Correlation of ranks from which a number is reported as a copy of a numeric target."""


def describe_suspicious_columns(
    columns: Sequence[Column], y: np.ndarray, *, classify: bool
) -> list[str]:
    """Return a sentence for each column that looks like an identifier or contains the target.

    Args:
        columns: feature columns
        y: (rows) target
        classify: whether the target consists of classes
    """
    if len(y) < MIN_ROWS:
        return []
    sentences = []
    codes = np.unique(y, return_inverse=True)[1]
    for column in columns:
        if looks_like_id(column):
            sentences.append(
                f"column {column.name!r} looks like an identifier: it differs in every row; leave "
                f"it out with --drop {column.name}, or keep it in the output with --id "
                f"{column.name}"
            )
        elif contains_target(column, codes, classify=classify):
            sentences.append(
                f"column {column.name!r} determines the target; if it is not known when a "
                f"prediction is made, leave it out with --drop {column.name}"
            )
    return sentences


def looks_like_id(column: Column) -> bool:
    """Return whether a column differs in every row: texts, or integers without gaps."""
    values = column.values
    if column.kind == "numeric":
        if np.isnan(values).any() or (values != np.round(values)).any():
            return False
        is_unique = len(np.unique(values)) == len(values)
        return bool(is_unique and np.ptp(values) == len(values) - 1)
    if column.kind not in ("categorical", "string"):
        return False
    texts = [text for text in values if text is not None]
    # Sentences differ in every row too; keys contain no blanks.
    return (
        len(texts) == len(values)
        and len(set(texts)) == len(texts)
        and not any(" " in text for text in texts)
    )


def contains_target(column: Column, codes: np.ndarray, *, classify: bool) -> bool:
    """Return whether a column alone determines the target.

    Args:
        column: feature column
        codes: (rows) ranks of the target's values
        classify: whether the target consists of classes
    """
    if column.values.dtype == np.float64:
        present = ~np.isnan(column.values)
        values, codes = column.values[present], codes[present]
        if len(values) < MIN_ROWS or np.ptp(values) == 0 or np.ptp(codes) == 0:
            return False
        if not classify:
            ranks = np.unique(values, return_inverse=True)[1]
            return bool(abs(np.corrcoef(ranks, codes)[0, 1]) >= MIN_CORRELATION)
    else:
        texts = [text if text is not None else "" for text in column.values]
        values = np.unique(texts, return_inverse=True)[1]
    # Every value belongs to one class, and there are too few values for that to be chance.
    distinct = len(np.unique(values))
    if not classify or distinct < 2 or len(values) < MIN_ROWS_PER_VALUE * distinct:
        return False
    pairs = np.unique(np.stack([values, codes]), axis=1).shape[1]
    return pairs == distinct and len(np.unique(codes)) > 1
