"""The rows of every cell, read once and made small: losses over steps, numbers over sites."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.grid import Arm
from addnorm.core.rows import Row
from addnorm.report.downsample import Points, downsample, evenly_spaced, finite_points
from addnorm.report.run_history import History

MEASURES = ("gradient_norm", "stream_variance", "dependency", "update_ratio")
MAX_PAGE_POINTS, MIN_CELL_POINTS, MAX_CELL_POINTS = 40_000, 30, 400
"""Values of training losses on a page; least and most of a cell."""
MAX_STEPS, MAX_SITES = 6, 72
"""Moments and sites at which the inside is shown."""

Setting = tuple[int, int | None, float]
"""Depth, warm-up, learning rate."""
MetricKey = tuple[str, str]
"""What was measured, in which stack."""
Profile = Mapping[int, float]
"""A number by site."""


@dataclass(frozen=True)
class CellCurves:
    """What is drawn of one cell."""

    outcome: CellOutcome
    train: Points
    valid: Points
    full_train: Points = ()
    """The training loss before it was thinned."""
    site_profiles: Mapping[tuple[str, str, int], Profile] = field(default_factory=dict)
    """By measure, stack and step: the value at each site."""

    @property
    def setting(self) -> Setting:
        """Depth, warm-up, learning rate."""
        cell = self.outcome.cell
        return cell.depth, cell.warmup, cell.lr

    @property
    def arm(self) -> Arm:
        """Its arm."""
        return self.outcome.cell.arm


@dataclass(frozen=True)
class StudyCurves:
    """All cells that have rows, and what is the same for all of them."""

    cells: tuple[CellCurves, ...]
    sites: Mapping[str, Mapping[int, str]]
    """Names of the sites of each stack: layer and kind."""
    num_points: int
    """Training losses that were measured; of which are kept:"""
    num_drawn: int
    num_nonfinite: int
    """Losses that were not finite."""

    @classmethod
    def from_study(cls, study: Study) -> "StudyCurves":
        """Out of the folder of a comparison."""
        most = max(
            MIN_CELL_POINTS, min(MAX_CELL_POINTS, MAX_PAGE_POINTS // max(1, len(study.cells)))
        )
        made: list[CellCurves] = []
        sites: dict[str, dict[int, str]] = {}
        points = kept = lost = 0
        for judged in study.cells:
            rows = _drop_superseded(study.rows(judged.cell))
            if not rows:
                continue
            train, valid = _loss_points(rows, "train"), _loss_points(rows, "valid")
            good, checked = finite_points(train), finite_points(valid)
            drawn = downsample(good, most)
            inside = _collect_profiles(rows, sites)
            made.append(CellCurves(judged, drawn, downsample(checked, most), good, inside))
            points, kept = points + len(good), kept + len(drawn)
            lost += len(train) + len(valid) - len(good) - len(checked)
        return cls(tuple(made), dict(sorted(sites.items(), key=_encoder_first)), points, kept, lost)

    def steps(self) -> list[int]:
        """The moments at which the inside is shown, the first measured and the last among them."""
        every = sorted({step for trace in self.cells for _, _, step in trace.site_profiles})
        return evenly_spaced(every, MAX_STEPS)


def mean_over_seeds(curves: Sequence[Points]) -> list[tuple[float, float]]:
    """The mean at each step that all curves have: it ends where the first of them ends.

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
    """The mean at each site, over the seeds that have a finite value there."""
    found: dict[int, list[float]] = {}
    for profile in profiles:
        for site, value in profile.items():
            if math.isfinite(value):
                found.setdefault(site, []).append(value)
    kept = evenly_spaced(sorted(found), MAX_SITES)
    return {site: math.fsum(found[site]) / len(found[site]) for site in kept}


def _loss_points(rows: Iterable[Row], split: str) -> list[tuple[float, float]]:
    return [
        (row["step"], row["value"])
        for row in rows
        if row["name"] == "loss"
        and row.get("site") is None
        and (row.get("split") or "train") == split
    ]


def _collect_profiles(
    rows: Sequence[Row], sites: dict[str, dict[int, str]]
) -> Mapping[tuple[str, str, int], Profile]:
    found: dict[tuple[str, str, int], dict[int, float]] = {}
    for row in rows:
        site = row.get("site")
        if site is None or row["name"] not in MEASURES:
            continue
        stack = str(row.get("stack") or "")
        found.setdefault((row["name"], stack, row["step"]), {})[site] = row["value"]
        names = sites.setdefault(stack, {})
        if site not in names:
            layer = f"layer {row['layer']}" if row.get("layer") is not None else ""
            names[site] = ", ".join(filter(None, (layer, str(row.get("kind") or ""))))
    return found


def _drop_superseded(rows: list[Row]) -> Sequence[Row]:
    """Without what a later attempt did again, where there was one; most cells ran in one go."""
    steps = [row["step"] for row in rows if row["name"] == "loss" and row.get("split") == "train"]
    once = all(before < after for before, after in pairwise(steps))
    return rows if once else History.from_rows(rows).rows


def _encoder_first(item: tuple[str, object]) -> bool:
    return item[0] != "encoder"
