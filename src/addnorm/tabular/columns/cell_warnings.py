"""Warnings about cells whose reading may surprise: texts that count as missing, ambiguous dates."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from addnorm.core.errors import TableWarning
from addnorm.tabular.columns.reader import Column

if TYPE_CHECKING:
    from addnorm.tabular.columns.encoder import TableEncoder

MAX_NAMED = 5
"""Cells of a column, and columns, that a message names."""
MAX_NEW_FRACTION = 0.2
"""Fraction of the cells of a column beyond what an earlier fit has seen without a warning."""


def describe_cells(columns: Sequence[Column]) -> list[str]:
    """Return a sentence for each kind of cells that was read in a way its owner should know."""
    sentences = [
        *_list_cells("cells that count as missing", columns, "missing_texts"),
        *_list_cells("cells that cannot be parsed count as missing", columns, "failed_texts"),
    ]
    for column in columns:
        if column.other_texts:
            sentences.append(
                f"column {column.name!r} is read as {column.kind} because of "
                f"{_format_counts(column.other_texts)}; column_types="
                f"{{{column.name!r}: 'numeric'}} reads numbers, and these cells as missing"
            )
        if column.other_formats:
            sentences.append(
                f"column {column.name!r}: dates are read as {column.date_format}, but "
                f"{column.other_formats[0]} fits them too; convert them with "
                "pandas.to_datetime(..., format=...) to choose"
            )
    return sentences


def warn_about_cells(columns: Sequence[Column]) -> None:
    """Issue a `TableWarning` for each sentence of `describe_cells`."""
    for sentence in describe_cells(columns):
        warnings.warn(sentence, TableWarning, stacklevel=2)


def warn_about_failed_cells(columns: Sequence[Column]) -> None:
    """Issue a `TableWarning` for cells of new rows that could not be parsed."""
    for sentence in _list_cells(
        "cells that cannot be parsed count as missing", columns, "failed_texts"
    ):
        warnings.warn(sentence, TableWarning, stacklevel=2)


def warn_about_shift(encoder: "TableEncoder", columns: Sequence[Column]) -> None:
    """Issue a `TableWarning` for columns of a continued fit that its encoder does not cover.

    The encoder of the first fit is kept: numbers beyond its range get the score of its limit, and
    all new categories share one code.
    """
    new = {}
    for number in encoder.numbers:
        if number.part in ("", "elapsed"):
            values, known = columns[number.column].values, number.curve.values
            new[number.column] = (values < known[0]) | (values > known[-1])
    for category in encoder.categories:
        values, seen = columns[category.column].values, set(category.values)
        new[category.column] = np.array([x is not None and x not in seen for x in values])
    shifted = [
        f"{encoder.names[index]!r} ({mask.mean():.0%} of the cells)"
        for index, mask in sorted(new.items())
        if mask.mean() > MAX_NEW_FRACTION
    ]
    if shifted:
        more = f" and {len(shifted) - MAX_NAMED} more columns" if len(shifted) > MAX_NAMED else ""
        warnings.warn(
            "cells beyond the range or the categories of the earlier fit, which its encoding "
            f"cannot tell apart: {', '.join(shifted[:MAX_NAMED])}{more}; set warm_start=False and "
            "fit again for shifted data",
            TableWarning,
            stacklevel=2,
        )


def _list_cells(text: str, columns: Sequence[Column], field: str) -> list[str]:
    listed = [
        f"{column.name!r} ({_format_counts(getattr(column, field))})"
        for column in columns
        if getattr(column, field)
    ]
    more = f", and in {len(listed) - MAX_NAMED} more columns" if len(listed) > MAX_NAMED else ""
    return [f"{text}: {', '.join(listed[:MAX_NAMED])}{more}"] if listed else []


def _format_counts(counts: Mapping[str, int]) -> str:
    ranked = sorted(counts, key=lambda text: (-counts[text], text))
    named = ", ".join(f"{text!r} in {_rows(counts[text])}" for text in ranked[:MAX_NAMED])
    return named + (f" and {len(ranked) - MAX_NAMED} more" if len(ranked) > MAX_NAMED else "")


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
