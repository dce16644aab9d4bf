"""The rows of every cell of a comparison, read once and downsampled for charts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.grid import Arm
from addnorm.comparison.outcomes import VALIDATION_LOSS
from addnorm.comparison.tasks.function import select_metric
from addnorm.core.rows import Row
from addnorm.report.comparison.site_metrics import SITE_METRICS
from addnorm.report.downsample import Points, downsample, evenly_spaced, finite_points
from addnorm.report.format import site_label
from addnorm.report.run_history import History

MAX_PAGE_POINTS, MIN_CELL_POINTS, MAX_CELL_POINTS = 40_000, 30, 400
"""Limits on the training losses of a page, and of a single cell."""
MAX_STEPS, MAX_SITES = 6, 72
"""Limits on the steps and sites at which per-site metrics are drawn."""

CellSetting = tuple[int, int | None, float]
"""Depth, warm-up steps (None for the arm's own schedule) and learning rate."""
Profile = Mapping[int, float]
"""A value by site."""


@dataclass(frozen=True)
class CellCurves:
    """Losses over the steps of a cell, and its metrics at all sites."""

    outcome: CellOutcome
    train: Points
    valid: Points
    """The validation loss, or the metric of the task that arms are judged by."""
    full_train: Points = ()
    """The training loss before downsampling."""
    site_profiles: Mapping[tuple[str, str, int], Profile] = field(default_factory=dict)
    """Values of all sites by measure, stack and step."""

    @property
    def setting(self) -> CellSetting:
        """Depth, warm-up and learning rate of the cell."""
        cell = self.outcome.cell
        return cell.depth, cell.warmup, cell.lr

    @property
    def arm(self) -> Arm:
        """Wiring, norm and schedule."""
        return self.outcome.cell.arm

    def losses(self, split: str) -> Points:
        """Return the training loss before downsampling, or the validation loss."""
        return self.full_train if split == "train" else self.valid


@dataclass(frozen=True)
class StudyCurves:
    """The curves of all cells that have rows."""

    cells: tuple[CellCurves, ...]
    sites: Mapping[str, Mapping[int, str]]
    """Label of each site by stack and site."""
    num_points: int
    """Number of finite training losses that were measured."""
    num_drawn: int
    """Number of training losses after downsampling."""
    num_nonfinite: int
    """Number of training and validation losses that are not finite."""

    @classmethod
    def from_study(cls, study: Study) -> "StudyCurves":
        """Read the rows of all cells of a comparison."""
        max_points = max(
            MIN_CELL_POINTS, min(MAX_CELL_POINTS, MAX_PAGE_POINTS // max(1, len(study.cells)))
        )
        column = study.task.objective.column
        metric = "valid_loss" if column == VALIDATION_LOSS.column else column
        cells: list[CellCurves] = []
        sites: dict[str, dict[int, str]] = {}
        num_points = num_drawn = num_nonfinite = 0
        for outcome in study.cells:
            rows = _drop_superseded(study.rows(outcome.cell))
            if not rows:
                continue
            train, valid = _metric_points(rows, "train_loss"), _metric_points(rows, metric)
            finite_train, finite_valid = finite_points(train), finite_points(valid)
            drawn = downsample(finite_train, max_points)
            cells.append(
                CellCurves(
                    outcome,
                    drawn,
                    downsample(finite_valid, max_points),
                    finite_train,
                    _collect_profiles(rows),
                )
            )
            _collect_site_labels(rows, sites)
            num_points, num_drawn = num_points + len(finite_train), num_drawn + len(drawn)
            num_nonfinite += len(train) + len(valid) - len(finite_train) - len(finite_valid)
        encoder_first = dict(sorted(sites.items(), key=lambda item: item[0] != "encoder"))
        return cls(tuple(cells), encoder_first, num_points, num_drawn, num_nonfinite)

    def steps(self) -> list[int]:
        """Return the steps at which sites are drawn, including the first and the last measured."""
        all_steps = sorted({step for cell in self.cells for _, _, step in cell.site_profiles})
        return evenly_spaced(all_steps, MAX_STEPS)


def mean_over_seeds(curves: Sequence[Points]) -> list[tuple[float, float]]:
    """Return the mean at each step that all curves share; it ends where the shortest curve ends.

    >>> mean_over_seeds([[(1, 2.0), (2, 4.0)], [(1, 4.0)]])
    [(1, 3.0)]
    """
    if not curves:
        return []
    others = [dict(curve) for curve in curves[1:]]
    return [
        (step, math.fsum([value, *(other[step] for other in others)]) / len(curves))
        for step, value in curves[0]
        if all(step in other for other in others)
    ]


def mean_profile(profiles: Sequence[Profile]) -> dict[int, float]:
    """Return the mean at each site over the seeds that have a finite value there."""
    values: dict[int, list[float]] = {}
    for profile in profiles:
        for site, value in profile.items():
            if math.isfinite(value):
                values.setdefault(site, []).append(value)
    sites = evenly_spaced(sorted(values), MAX_SITES)
    return {site: math.fsum(values[site]) / len(values[site]) for site in sites}


def _metric_points(rows: Iterable[Row], metric: str) -> list[tuple[float, float]]:
    return [(row["step"], row["value"]) for row in select_metric(rows, metric)]


def _site_rows(rows: Iterable[Row]) -> Iterable[Row]:
    return (row for row in rows if row.get("site") is not None and row["name"] in SITE_METRICS)


def _collect_profiles(rows: Iterable[Row]) -> Mapping[tuple[str, str, int], Profile]:
    profiles: dict[tuple[str, str, int], dict[int, float]] = {}
    for row in _site_rows(rows):
        key = (row["name"], str(row.get("stack") or ""), row["step"])
        profiles.setdefault(key, {})[row["site"]] = row["value"]
    return profiles


def _collect_site_labels(rows: Iterable[Row], labels: dict[str, dict[int, str]]) -> None:
    """Add the labels of sites that are not in `labels` yet."""
    for row in _site_rows(rows):
        stack_labels = labels.setdefault(str(row.get("stack") or ""), {})
        if row["site"] not in stack_labels:
            stack_labels[row["site"]] = site_label(row)


def _drop_superseded(rows: list[Row]) -> Sequence[Row]:
    """Drop rows that a resumed attempt replaced; most cells ran without interruption."""
    steps = [row["step"] for row in rows if row["name"] == "loss" and row.get("split") == "train"]
    is_uninterrupted = all(before < after for before, after in pairwise(steps))
    return rows if is_uninterrupted else History.from_rows(rows).rows
