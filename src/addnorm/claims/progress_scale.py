"""The scale of progress, and the setting at which an arm is judged.

All claims of a field share one scale, so that equal cells are judged equally.

A cell by itself has raw progress, the fraction of the baseline's loss that it removes. A claim has
a *reference*, usually Pre-LN, whose cells all claims of its field contain. Progress is raw progress
divided by that of the reference, so it depends on the cell and on the reference only, not on the
other arms of a claim.

raw = 1 - loss / baseline, progress = raw / (mean raw progress of the reference at its best setting)
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def best_setting_rows(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """Return the rows with these field values, of each seed at its best setting.

    A setting is study, arm, depth, warm-up and learning rate; those not in `fields` are chosen. The
    setting of a seed is chosen by the mean progress of the other seeds, so that the choice does not
    depend on the value that is judged. A single seed chooses for itself.
    """
    own = select_fields(rows, **fields)
    settings: dict[tuple[Any, ...], dict[int, float]] = {}
    for row in own:
        if row["name"] == "progress":
            settings.setdefault(setting_key(row), {})[row["seed"]] = row["value"]
    seeds = {seed for values in settings.values() for seed in values}

    def mean_of_others(seed: int, values: Mapping[int, float]) -> float:
        others = [value for each, value in values.items() if each != seed or len(seeds) == 1]
        return fmean(others) if others else -math.inf

    best = {
        seed: max(settings, key=lambda at, seed=seed: mean_of_others(seed, settings[at]))  # type: ignore[misc]
        for seed in seeds
    }
    return [row for row in own if setting_key(row) == best.get(row["seed"])]


def best_setting_values(
    rows: Iterable[Row], name: str = "progress", **fields: Any
) -> dict[int, float]:
    """Return the values of a row name at the best setting, by seed."""
    best = best_setting_rows(rows, **fields)
    return {row["seed"]: row["value"] for row in best if row["name"] == name}


def select_fields(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """Return the rows with these field values."""
    return [row for row in rows if all(row.get(key) == value for key, value in fields.items())]


def _divide(value: float, unit: float) -> float:
    return value / unit if unit > 0 else 0.0
