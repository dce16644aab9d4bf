"""Claims by training: comparisons of the lab, read as rows, judged by progress."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any, ClassVar

from addnorm.claims.base import Budget, Claim, Desk
from addnorm.claims.share import borrow, shortened
from addnorm.core.rows import Row
from addnorm.lab.conduct import compare
from addnorm.lab.judge import ENOUGH, NOTHING, Course, progress
from addnorm.lab.spec import Comparison
from addnorm.lab.study import Judged, Study

PROGRESS = (
    "Progress is the share of the way from the loss of a model that only knows how often each "
    "token occurs (0) to the lowest final validation loss of any cell of this claim on the same "
    "data (1); a cell that diverged, or ended above the first, has made none, and nobody has if "
    "that lowest loss is not 5 % below the first. Each arm is judged at the setting of the common "
    "ladder at which its mean progress over seeds is highest."
)
TRAINS = ENOUGH
"""Progress from which on an arm has trained, as everywhere in the lab."""
LITTLE = 0.05
"""Progress that is worth no word: within it two arms are as good as each other."""
FEWEST = 50
"""Records of a smoke run."""
DATA = "data"
"""Beside the studies: corpora of few records."""
GUIDE = ((TRAINS, "trained, from here on"),)


class ByTraining(Claim):
    """A claim whose numbers come from comparisons of the lab."""

    how = "by training"
    wanted: ClassVar[tuple[str, ...]] = ("progress",)
    """Which rows of a cell are kept: progress, loss, train_loss, rate, or valid (one a step)."""

    @abstractmethod
    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """What is trained, by the name of the study."""

    def records(self, budget: Budget) -> Mapping[str, int]:
        """Studies that see only so many records of the demo corpus in training."""
        # To read all of them would be most of a smoke run.
        return dict.fromkeys(self.comparisons(budget), FEWEST) if budget == "smoke" else {}

    def settings(self, budget: Budget) -> dict[str, Any]:
        """The specs, and how many records they see."""
        specs, few = self.comparisons(budget), self.records(budget)
        return {
            name: spec.model_dump(mode="json") | ({"records": few[name]} if name in few else {})
            for name, spec in specs.items()
        }

    def cost(self, budget: Budget) -> str:
        """So many cells of so many steps."""
        specs = self.comparisons(budget).values()
        steps = sum(len(spec.cells()) * spec.steps for spec in specs)
        return f"{sum(len(spec.cells()) for spec in specs):,} cells, {steps:,} steps in all"

    def rows(self, budget: Budget, desk: Desk) -> list[Row]:
        """Train every cell that no other claim has trained, and read them all."""
        studies: dict[str, Study] = {}
        few = self.records(budget)
        for name, spec in self.comparisons(budget).items():
            if name in few:
                data = shortened(desk.studies.parent / DATA, spec.task, few[name])
                spec = spec.model_copy(update={"data": str(data)})
            folder = desk.studies / spec.digest
            borrow(spec, folder)
            study = compare(spec, folder, engine=desk.engine, audience=desk.audience)
            if not study.complete:
                raise KeyboardInterrupt  # the bell was rung; what is trained stays
            _refuse_crashes(study)
            studies[name] = study
        return [
            row
            for name, study in studies.items()
            for row in cell_rows(study, name, self.wanted, best=_best(study, studies.values()))
        ]


def _best(study: Study, studies: Iterable[Study]) -> float:
    """The lowest final loss of any cell on the same data."""
    ground = study.ground
    assert ground is not None
    same = [s for s in studies if s.ground is not None and s.ground.corpus == ground.corpus]
    losses = (each.loss for each in chain.from_iterable(s.cells for s in same))
    return min((loss for loss in losses if math.isfinite(loss)), default=math.inf)


def cell_rows(study: Study, name: str, wanted: Sequence[str], *, best: float) -> Iterator[Row]:
    """The rows of every cell. name: of the study, which specs do not have. best: the lowest loss
    that anybody reached.
    """
    ground = study.ground
    assert ground is not None
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
    """Progress from 0 on; 0 where somebody diverged, or where nobody learnt anything."""
    if not math.isfinite(loss) or best > NOTHING * baseline:
        return 0.0
    return max(0.0, progress(loss, baseline=baseline, best=best))


def _short(value: float) -> float:
    """Six digits: more is noise, and rows are kept."""
    return float(f"{value:.6g}")


def best_setting(rows: Iterable[Row], **where: Any) -> list[Row]:
    """Of the rows whose fields are these: those of the setting where mean progress is highest.

    A setting is study, arm, depth, warm-up and learning rate; what is not in `where` is chosen.
    """
    own = [row for row in rows if all(row.get(key) == value for key, value in where.items())]
    settings: dict[tuple[Any, ...], list[float]] = {}
    for row in own:
        if row["name"] == "progress":
            settings.setdefault(_setting(row), []).append(row["value"])
    if not settings:
        return []
    best = max(settings, key=lambda at: fmean(settings[at]))
    return [row for row in own if _setting(row) == best]


def tuned(rows: Iterable[Row], name: str = "progress", **where: Any) -> dict[int, float]:
    """By seed: a number of an arm at its best setting."""
    found = best_setting(rows, **where)
    return {row["seed"]: row["value"] for row in found if row["name"] == name}


def _setting(row: Row) -> tuple[Any, ...]:
    return row["study"], row["arm"], row["depth"], row["warmup"], row["lr"]
