"""Claims by training: comparisons of the lab, read as rows, judged by progress."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar

from addnorm.claims.base import Budget, Claim, Desk
from addnorm.claims.share import borrow
from addnorm.core.rows import Row
from addnorm.lab.conduct import compare
from addnorm.lab.judge import ENOUGH, Course, progress
from addnorm.lab.spec import Comparison
from addnorm.lab.study import Judged, Study

PROGRESS = (
    "Progress is the share of the way from the loss of a model that only knows how often each "
    "token occurs (0) to the lowest final validation loss of any cell of the same study (1); a "
    "cell that diverged, or ended above the first, has made none. Each arm is judged at the "
    "setting of the common ladder at which its mean progress over seeds is highest."
)
TRAINS = ENOUGH
"""Progress from which on an arm has trained, as everywhere in the lab."""
LITTLE = 0.05
"""Progress that is worth no word: within it two arms are as good as each other."""
GUIDE = ((TRAINS, "trained, from here on"),)


class ByTraining(Claim):
    """A claim whose numbers come from comparisons of the lab."""

    how = "by training"
    wanted: ClassVar[tuple[str, ...]] = ("progress",)
    """Which rows of a cell are kept: progress, loss, train_loss, rate, or valid (one a step)."""

    @abstractmethod
    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """What is trained, by the name of the study."""

    def settings(self, budget: Budget) -> dict[str, Any]:
        """The specs."""
        specs = self.comparisons(budget)
        return {name: spec.model_dump(mode="json") for name, spec in specs.items()}

    def cost(self, budget: Budget) -> str:
        """So many cells of so many steps."""
        specs = self.comparisons(budget).values()
        steps = sum(len(spec.cells()) * spec.steps for spec in specs)
        return f"{sum(len(spec.cells()) for spec in specs):,} cells, {steps:,} steps in all"

    def rows(self, budget: Budget, desk: Desk) -> list[Row]:
        """Train every cell that no other claim has trained, and read them all."""
        made: list[Row] = []
        for name, spec in self.comparisons(budget).items():
            folder = desk.studies / spec.digest
            borrow(spec, folder)
            study = compare(spec, folder, engine=desk.engine, audience=desk.audience)
            if not study.complete:
                raise KeyboardInterrupt  # the bell was rung; what is trained stays
            _refuse_crashes(study)
            made += cell_rows(study, name, self.wanted)
        return made


def cell_rows(study: Study, name: str, wanted: Sequence[str]) -> Iterator[Row]:
    """The rows of every cell; name: of the study, which specs do not have."""
    ground = study.ground
    assert ground is not None
    best = min((e.loss for e in study.cells if math.isfinite(e.loss)), default=math.inf)
    for each in study.cells:
        cell = each.cell
        where: dict[str, Any] = {"study": name, "arm": cell.arm.name, "depth": cell.depth}
        where |= {"warmup": cell.warmup, "lr": cell.lr, "seed": cell.seed, "state": each.state}
        for what, value, more in _measured(study, each, baseline=ground.baseline, best=best):
            if what in wanted:
                yield {"name": what, "value": _short(value), **where, **more}


def _refuse_crashes(study: Study) -> None:
    """A crash says nothing about an arm, and an arm of fewer seeds is no fair one."""
    crashed = [each for each in study.cells if each.state == "crashed" and each.end is not None]
    if crashed:
        first = crashed[0]
        raise RuntimeError(
            f"{len(crashed)} of {len(study.cells)} cells crashed, {first.cell.name} first: "
            f"{first.end.why if first.end else ''}"
        )


def _measured(
    study: Study, each: Judged, *, baseline: float, best: float
) -> Iterator[tuple[str, float, dict[str, Any]]]:
    assert each.end is not None
    rows = study.rows(each.cell)
    yield "progress", gone(each.loss, baseline=baseline, best=best), {}
    yield "loss", each.loss, {}
    yield "train_loss", Course.of(rows).recent, {}
    yield "rate", each.end.rate, {}
    for row in rows:
        if row["name"] == "loss" and row.get("split") == "valid":
            way = gone(float(row["value"]), baseline=baseline, best=best)
            yield "valid", way, {"step": row["step"]}


def gone(loss: float, *, baseline: float, best: float) -> float:
    """Progress from 0 on: who diverged, ended worse than the baseline, or met nobody who learnt."""
    if not math.isfinite(loss) or best >= baseline:
        return 0.0
    return max(0.0, progress(loss, baseline=baseline, best=best))


def _short(value: float) -> float:
    """Six digits: more is noise, and rows are kept."""
    return float(f"{value:.6g}")


def tuned(rows: Iterable[Row], name: str = "progress", **where: Any) -> dict[int, float]:
    """By seed: a number of an arm at the setting at which its mean progress is highest.

    where: fields of the rows, such as arm, depth, warmup; settings are what is left of them.
    """
    own = [row for row in rows if all(row.get(key) == value for key, value in where.items())]
    settings: dict[tuple[Any, ...], list[Row]] = {}
    for row in own:
        if row["name"] == "progress":
            settings.setdefault(_setting(row), []).append(row)
    if not settings:
        return {}
    best = max(settings, key=lambda at: fmean(row["value"] for row in settings[at]))
    return {
        row["seed"]: row["value"] for row in own if row["name"] == name and _setting(row) == best
    }


def _setting(row: Row) -> tuple[Any, ...]:
    return row["study"], row["arm"], row["depth"], row["warmup"], row["lr"]
