"""Series of a metric at one site, and how far a value is from the values before it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from addnorm.core.rows import Row

MIN_LOOKS = 8
"""Earlier looks that a value is compared with, at least."""
WINDOW = 16
"""Earlier looks that a value is compared with, at most."""
MIN_DEVIATIONS = 6.0
MIN_FACTOR = 3.0
"""A change is at least this many deviations and this factor away from the median."""


MIN_RISEN_VALUES = {"max_logit": 10.0}
"""Values that a metric must reach for its rise to count; small logits grow in every run."""


@dataclass
class Series:
    """Values of one metric at one site, in order of the step."""

    name: str
    label: str
    """Site, norm or `the whole model`."""
    site: int | None
    stack: str
    layer: int
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Change:
    """A value that differs from the values before it."""

    series: Series
    step: int
    previous_step: int
    """Step of the look before."""
    value: float
    median: float
    deviations: float
    looks: int
    """Number of earlier looks that it was compared with."""


def describe_site(row: Row) -> str:
    """Return the name of the site of a row: its label, or stack, layer and kind."""
    if row.get("norm"):
        return str(row["norm"])
    if row.get("label"):
        return str(row["label"])
    if row.get("site") is None:
        return "the whole model"
    return f"{row.get('stack', 'stack')} layer {row.get('layer')}, {row.get('kind')}"


def collect_series(rows: Iterable[Row]) -> list[Series]:
    """Return the series of all metrics, without events and losses."""
    series: dict[tuple[object, ...], Series] = {}
    for row in rows:
        if row["name"] in NOT_SERIES or row.get("split", "train") != "train":
            continue
        key = (row["name"], row.get("stack"), row.get("site"), row.get("norm"))
        own = series.get(key)
        if own is None:
            own = series[key] = Series(
                row["name"],
                describe_site(row),
                row.get("site"),
                str(row.get("stack") or ""),
                int(row.get("layer") or 0),
            )
        own.steps.append(row["step"])
        own.values.append(float(row["value"]))
    return list(series.values())


NOT_SERIES = frozenset({"loss", "spike", "diverged", "nonfinite", "ended", "skip", "rewind"})


def find_changes(series: Series, *, upward: bool) -> list[Change]:
    """Return the values that are far above, or below, the values before them.

    far: at least 6 times 1.4826 MAD from the median of the last 16 looks, at least 8, and at least
        3 times, or at most a third of, that median; with a factor of 2, a third of healthy runs in
        which a task is suddenly learned had several changes. It must also be beyond all earlier
        looks: gradients of a converged run are small and jump, but not above those of its start
    """
    changes = []
    for index in range(MIN_LOOKS, len(series.values)):
        value = series.values[index]
        past = [v for v in series.values[max(0, index - WINDOW) : index] if math.isfinite(v)]
        if len(past) < MIN_LOOKS or not math.isfinite(value):
            continue
        center = median(past)
        deviation = 1.4826 * median(abs(each - center) for each in past)
        distance = value - center if upward else center - value
        is_far = value >= MIN_FACTOR * center if upward else value <= center / MIN_FACTOR
        earlier = [v for v in series.values[:index] if math.isfinite(v)]
        is_record = value > max(earlier) if upward else value < min(earlier)
        is_small = upward and value < MIN_RISEN_VALUES.get(series.name, 0.0)
        if not is_far or not is_record or is_small or center <= 0 or distance <= 0:
            continue
        deviations = distance / deviation if deviation > 0 else math.inf
        if deviations >= MIN_DEVIATIONS:
            changes.append(
                Change(
                    series,
                    series.steps[index],
                    series.steps[index - 1],
                    value,
                    center,
                    deviations,
                    len(past),
                )
            )
    return changes


def first_finite(values: Sequence[float], count: int) -> float:
    """Return the median of the first finite values; nan if there are none."""
    finite = [value for value in values[:count] if math.isfinite(value)]
    return median(finite) if finite else math.nan


def last_finite(values: Sequence[float]) -> float:
    """Return the last finite value; nan if there is none."""
    return next((value for value in reversed(values) if math.isfinite(value)), math.nan)
