"""The scale of progress: one for all claims of a field, so that equal cells are judged equally.

A cell by itself has raw progress, the fraction of the baseline's loss that it removes. A claim has
a *reference*, usually Pre-LN, whose cells all claims of its field contain. Progress is raw progress
divided by that of the reference, so it depends on the cell and on the reference only, not on the
other arms of a claim.

raw = 1 - loss / baseline, progress = raw / (mean raw progress of the reference at its best setting)
"""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from addnorm.core.rows import Row

SCALED_ROWS = ("progress", "valid")
"""Names of the rows that hold raw progress and are scaled before they are judged."""


def raw_progress(loss: float, *, baseline: float) -> float:
    """Return the fraction of the baseline's loss that a cell removes.

    A cell that diverged or ended above the baseline has removed nothing.

    >>> raw_progress(0.5, baseline=2.0), raw_progress(3.0, baseline=2.0)
    (0.75, 0.0)
    """
    return max(0.0, 1 - loss / baseline) if math.isfinite(loss) else 0.0


def scale_progress(
    rows: Sequence[Row],
    *,
    is_reference: Callable[[Row], bool],
    scale_of: Callable[[str], str] = lambda study: "",
) -> list[Row]:
    """Return rows whose progress is relative to the reference.

    Rows of older runs hold progress relative to the best cell of their claim. They are proportional
    to raw progress, so the result is the same.

    Args:
        rows: rows of a claim
        is_reference: whether a row belongs to the reference
        scale_of: name of the scale of a study; studies on equal data share one
    """
    scales = {scale_of(row["study"]) for row in rows if row["name"] in SCALED_ROWS}
    units = {
        scale: reference_progress(
            row for row in rows if is_reference(row) and scale_of(row["study"]) == scale
        )
        for scale in scales
    }
    return [
        {**row, "value": _divide(row["value"], units[scale_of(row["study"])])}
        if row["name"] in SCALED_ROWS
        else row
        for row in rows
    ]


def reference_progress(rows: Iterable[Row]) -> float:
    """Return the mean raw progress over seeds at the best setting; 0 without rows."""
    values: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row["name"] == "progress":
            values.setdefault(setting_key(row), []).append(row["value"])
    return max(map(fmean, values.values()), default=0.0)


def setting_key(row: Row) -> tuple[Any, ...]:
    """Return the setting of a row: study, arm, depth, warm-up and learning rate."""
    return tuple(row.get(field) for field in ("study", "arm", "depth", "warmup", "lr"))


def _divide(value: float, unit: float) -> float:
    return value / unit if unit > 0 else 0.0
