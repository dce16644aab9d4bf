"""The rows of every cell, read once and made small: losses over steps, numbers over sites."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from addnorm.comparison.analysis.study import Judged, Study
from addnorm.comparison.grid import Arm
from addnorm.core.rows import Row
from addnorm.report.downsample import Points, finite, spread, thin
from addnorm.report.run_history import History

MEASURES = ("gradient_norm", "stream_variance", "dependency", "update_ratio")
POINTS, LEAST_POINTS, MOST_POINTS = 40_000, 30, 400
"""Values of training losses on a page; least and most of a cell."""
MOST_STEPS, MOST_SITES = 6, 72
"""Moments and sites at which the inside is shown."""

Setting = tuple[int, int | None, float]
"""Depth, warm-up, learning rate."""
Place = tuple[str, str]
"""What was measured, in which stack."""
Profile = Mapping[int, float]
"""A number by site."""


@dataclass(frozen=True)
class Trace:
    """What is drawn of one cell."""

    judged: Judged
    train: Points
    valid: Points
    whole: Points = ()
    """The training loss before it was thinned."""
    inside: Mapping[tuple[str, str, int], Profile] = field(default_factory=dict)
    """By measure, stack and step: the value at each site."""

    @property
    def setting(self) -> Setting:
        """Depth, warm-up, learning rate."""
        cell = self.judged.cell
        return cell.depth, cell.warmup, cell.lr

    @property
    def arm(self) -> Arm:
        """Its arm."""
        return self.judged.cell.arm


@dataclass(frozen=True)
class Traces:
    """All cells that have rows, and what is the same for all of them."""

    all: tuple[Trace, ...]
    sites: Mapping[str, Mapping[int, str]]
    """Names of the sites of each stack: layer and kind."""
    points: int
    """Training losses that were measured; of which are kept:"""
    kept: int
    lost: int
    """Losses that were not finite."""

    @classmethod
    def read(cls, study: Study) -> "Traces":
        """Out of the folder of a comparison."""
        most = max(LEAST_POINTS, min(MOST_POINTS, POINTS // max(1, len(study.cells))))
        made: list[Trace] = []
        sites: dict[str, dict[int, str]] = {}
        points = kept = lost = 0
        for judged in study.cells:
            rows = _in_order(study.rows(judged.cell))
            if not rows:
                continue
            train, valid = _losses(rows, "train"), _losses(rows, "valid")
            good, checked = finite(train), finite(valid)
            drawn = thin(good, most)
            inside = _inside(rows, sites)
            made.append(Trace(judged, drawn, thin(checked, most), good, inside))
            points, kept = points + len(good), kept + len(drawn)
            lost += len(train) + len(valid) - len(good) - len(checked)
        return cls(tuple(made), dict(sorted(sites.items(), key=_encoder_first)), points, kept, lost)

    def steps(self) -> list[int]:
        """The moments at which the inside is shown, the first measured and the last among them."""
        every = sorted({step for trace in self.all for _, _, step in trace.inside})
        return spread(every, MOST_STEPS)


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
    kept = spread(sorted(found), MOST_SITES)
    return {site: math.fsum(found[site]) / len(found[site]) for site in kept}


def _losses(rows: Iterable[Row], split: str) -> list[tuple[float, float]]:
    return [
        (row["step"], row["value"])
        for row in rows
        if row["name"] == "loss"
        and row.get("site") is None
        and (row.get("split") or "train") == split
    ]


def _inside(
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


def _in_order(rows: list[Row]) -> Sequence[Row]:
    """Without what a later attempt did again, where there was one; most cells ran in one go."""
    steps = [row["step"] for row in rows if row["name"] == "loss" and row.get("split") == "train"]
    once = all(before < after for before, after in pairwise(steps))
    return rows if once else History.of(rows).rows


def _encoder_first(item: tuple[str, object]) -> bool:
    return item[0] != "encoder"
