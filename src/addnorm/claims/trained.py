"""Claims by training: comparisons of the lab, read as rows, judged by progress."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any, ClassVar

from addnorm.claims.cell_cache import (
    cell_commits,
    copy_finished_cells,
    record_commits,
    relocate_data,
    small_demo_corpus,
)
from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, Claim, ClaimWorkspace
from addnorm.claims.tables import make_table
from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.outcomes import NO_LEARNING_RATIO, TRAINED_PROGRESS, LossSummary, progress
from addnorm.comparison.run import run_comparison
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.errors import UserError
from addnorm.core.rows import Row

PROGRESS_DEFINITION = (
    "Progress is the share of the way from the loss of a model that only knows how often each "
    "token occurs (0) to the lowest final validation loss of any cell of this claim on the same "
    "data (1), within these few steps: who is slow counts as who fails. A cell that diverged, or "
    "ended above the first, has made none, and nobody has if that lowest loss is not 5 % below the "
    "first. Each arm is judged, seed by seed, at the setting of the common ladder at which its "
    "mean progress over the other seeds is highest. Two premises stand before every claim: "
    "somebody trains, and nobody does better by more than a little at the lowest or the highest "
    "learning rate of the ladder than between them."
)
TABLE_PROGRESS_DEFINITION = PROGRESS_DEFINITION.replace(
    "how often each token occurs", "how the target is spread"
)
TRAINED_THRESHOLD = TRAINED_PROGRESS
"""Progress above which an arm has trained, as everywhere in the lab; a convention, not a law."""
NEGLIGIBLE_PROGRESS = 0.05
"""Progress that is worth no word: within it two arms are as good as each other. A convention, set
before the first run: about what seeds differ by."""
SMOKE_RECORDS = 50
"""Records of a smoke run."""
DATA_FOLDER = "data"
"""Beside the studies: corpora of few records."""
LABELED_FIELDS = ("depth", "warmup")
"""Fields whose values say nothing without their name."""
FIRST_PILOT = (
    "six cells (Pre-LN and Post-LN of twelve layers, 150 steps, dates at learning rate 0.001, text "
    "at 0.001 and 0.003, one seed), to choose the number of steps, before the rules of all claims "
    "by training were written."
)
SECOND_PILOT = (
    " At the standard budget then a first round of three or four seeds by the same rules, whose "
    "verdicts are in the ledger. What is told here is the second: new seeds, more of them, longer "
    "ladders where somebody had been best at an end, and Pre-LN without warm-up alone where it "
    "only shows what can be learnt. Some thirty cells of twelve layers, with seeds 100 to 102, had "
    "been trained in runs that were given up, since they took too long."
)
TRAINED_GUIDE = ((TRAINED_THRESHOLD, "trained, from here on"),)


class TrainedClaim(Claim):
    """A claim whose rows tell, among others, the progress of trained arms."""

    method = "by training"
    pilot = FIRST_PILOT + SECOND_PILOT
    group_fields: ClassVar[tuple[str, ...]] = ("study", "arm")
    """Fields that tell apart what is tuned by itself."""

    @abstractmethod
    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """What the claim says, and premises of its own."""

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """Premises that all training has in common, then the findings."""
        return [*training_premises(rows, self.group_fields), *self.findings(rows)]


class ComparisonClaim(TrainedClaim):
    """One whose numbers come from comparisons of the lab."""

    row_names: ClassVar[tuple[str, ...]] = ("progress",)
    """Which rows of a cell are kept: progress, loss, train_loss, score (several), or valid (one a
    step)."""

    @abstractmethod
    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """What is trained, by the name of the study."""

    def records(self, budget: Budget) -> Mapping[str, int]:
        """Studies that see only so many records of the demo corpus in training."""
        # To read all of them would be most of a smoke run.
        return dict.fromkeys(self.comparisons(budget), SMOKE_RECORDS) if budget == "smoke" else {}

    def tables(self, budget: Budget) -> Mapping[str, str]:
        """Studies on tables: which; see `claims/tables.py`."""
        return {}

    def settings(self, budget: Budget) -> dict[str, Any]:
        """The specs, how many records they see, and which table."""
        few, tables = self.records(budget), self.tables(budget)
        return {
            name: spec.canonical_dict()
            | ({"records": few[name]} if name in few and name not in tables else {})
            | ({"table": tables[name]} if name in tables else {})
            for name, spec in self.comparisons(budget).items()
        }

    def cost(self, budget: Budget) -> str:
        """So many cells of so many steps."""
        specs = self.comparisons(budget).values()
        steps = sum(len(spec.cells()) * spec.steps for spec in specs)
        return f"{sum(len(spec.cells()) for spec in specs):,} cells, {steps:,} steps in all"

    def rows(self, budget: Budget, workspace: ClaimWorkspace) -> list[Row]:
        """Train every cell that no other claim has trained, and read them all."""
        few, tables = self.records(budget), self.tables(budget)
        studies = {
            name: _run_comparison(spec, workspace, tables.get(name, few.get(name)))
            for name, spec in self.comparisons(budget).items()
        }
        return [
            row
            for name, study in studies.items()
            for row in cell_rows(
                study, name, self.row_names, best=_lowest_loss(study, studies.values())
            )
        ]


def _run_comparison(spec: Comparison, workspace: ClaimWorkspace, subset: int | str | None) -> Study:
    """A comparison, run to its end. some: the name of a table, or how many records of the demo
    corpus it sees in training.
    """
    folder = workspace.studies / (spec.digest if subset is None else f"{spec.digest}-{subset}")
    if subset is not None:
        place = workspace.studies.parent / DATA_FOLDER
        data = (
            make_table(place, subset)
            if isinstance(subset, str)
            else small_demo_corpus(place, spec.task, subset)
        )
        spec = spec.model_copy(update={"data": str(data)})
    relocate_data(spec, folder)
    copy_finished_cells(spec, folder)
    study = run_comparison(spec, folder, engine=workspace.engine, callback=workspace.callback)
    record_commits(study)
    if study.interrupted:
        raise KeyboardInterrupt  # finished cells keep their results
    if not study.complete:
        waiting = sum(each.state == "waiting" for each in study.cells)
        raise UserError(
            f"{waiting} of {len(study.cells)} cells in {folder} have not ended, another process "
            "may be at work on them; wait for it, and give the same command again"
        )
    _raise_on_crashes(study)
    return study


def _lowest_loss(study: Study, studies: Iterable[Study]) -> float:
    """The lowest final loss of any cell on the same data."""
    ground = study.shared_data
    assert ground is not None
    same = [
        s for s in studies if s.shared_data is not None and s.shared_data.corpus == ground.corpus
    ]
    losses = (each.loss for each in chain.from_iterable(s.cells for s in same))
    return min((loss for loss in losses if math.isfinite(loss)), default=math.inf)


def cell_rows(study: Study, name: str, row_names: Sequence[str], *, best: float) -> Iterator[Row]:
    """The rows of every cell. name: of the study, which specs do not have. best: the lowest loss
    that anybody reached.
    """
    ground = study.shared_data
    assert ground is not None
    signed = cell_commits(study.folder)
    for each in study.cells:
        cell = each.cell
        where: dict[str, Any] = {"study": name, "arm": cell.arm.name, "depth": cell.depth}
        where |= {"warmup": cell.warmup, "lr": cell.lr, "seed": cell.seed, "state": each.state}
        where |= {"commit": signed.get(cell.name, "")}
        for what, value, more in _iter_measurements(
            study, each, baseline=ground.baseline, best=best
        ):
            if what in row_names:
                yield {"name": what, "value": _round_value(value), **where, **more}


def _raise_on_crashes(study: Study) -> None:
    """A crash says nothing about an arm, and an arm of fewer seeds is no fair one."""
    crashed = [each for each in study.cells if each.state == "crashed" and each.end is not None]
    if crashed:
        first = crashed[0]
        raise RuntimeError(
            f"{len(crashed)} of {len(study.cells)} cells crashed, {first.cell.name} first: "
            f"{first.end.why if first.end else ''}"
        )


def _iter_measurements(
    study: Study, outcome: CellOutcome, *, baseline: float, best: float
) -> Iterator[tuple[str, float, dict[str, Any]]]:
    assert outcome.end is not None
    rows = study.rows(outcome.cell)
    yield "progress", clipped_progress(outcome.loss, baseline=baseline, best=best), {}
    yield "loss", outcome.loss, {}
    yield "train_loss", LossSummary.from_rows(rows).recent, {}
    for name, value in outcome.end.scores.items():
        yield "score", value, {"which": name}
    for row in rows:
        if row["name"] == "loss" and row.get("split") == "valid":
            way = clipped_progress(float(row["value"]), baseline=baseline, best=best)
            yield "valid", way, {"step": row["step"], "steps": study.spec.steps}


def clipped_progress(loss: float, *, baseline: float, best: float) -> float:
    """Progress from 0 on; 0 where somebody diverged, or where nobody learnt anything."""
    if not math.isfinite(loss) or best > NO_LEARNING_RATIO * baseline:
        return 0.0
    return max(0.0, progress(loss, baseline=baseline, best=best))


def _round_value(value: float) -> float:
    """Six digits: more is noise, and rows are kept."""
    return float(f"{value:.6g}")


def best_setting_rows(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """Of the rows whose fields are these: those of each seed at its best setting.

    A setting is study, arm, depth, warm-up and learning rate; what is not in `where` is chosen. It
    is chosen for each seed by the mean progress of the others, so that nobody is judged by the
    seeds that chose; a single seed has no others, and no interval either.
    """
    own = [row for row in rows if all(row.get(key) == value for key, value in fields.items())]
    settings: dict[tuple[Any, ...], dict[int, float]] = {}
    for row in own:
        if row["name"] == "progress":
            settings.setdefault(_setting_key(row), {})[row["seed"]] = row["value"]
    seeds = {seed for values in settings.values() for seed in values}

    def without(seed: int, values: Mapping[int, float]) -> float:
        others = [value for each, value in values.items() if each != seed or len(seeds) == 1]
        return fmean(others) if others else -math.inf

    best = {
        seed: max(settings, key=lambda at, seed=seed: without(seed, settings[at]))  # type: ignore[misc]
        for seed in seeds
    }
    return [row for row in own if _setting_key(row) == best.get(row["seed"])]


def best_setting_values(
    rows: Iterable[Row], name: str = "progress", **fields: Any
) -> dict[int, float]:
    """By seed: a number of an arm at its best setting."""
    found = best_setting_rows(rows, **fields)
    return {row["seed"]: row["value"] for row in found if row["name"] == name}


def training_premises(rows: Sequence[Row], group_fields: Sequence[str]) -> list[Check]:
    """Somebody trains; and nobody is better at an edge of the ladder.

    sides: fields that tell apart what is tuned by itself
    """
    own = [row for row in rows if row["name"] == "progress"]
    best = estimate_over_seeds(best_setting_values(own))
    checks = [Check("progress of the best of all", best, low=TRAINED_THRESHOLD, premise=True)]
    for side in dict.fromkeys(tuple(row[field] for field in group_fields) for row in own):
        where = dict(zip(group_fields, side, strict=True))
        told = ", ".join(
            f"{name} {value}" if name in LABELED_FIELDS else str(value)
            for name, value in where.items()
        )
        what = f"{told}: progress inside the ladder minus that at its edges"
        checks.append(
            Check(
                what,
                paired_difference(*sweep_inside_and_edges(own, **where)),
                low=-NEGLIGIBLE_PROGRESS,
                premise=True,
            )
        )
    return checks


def sweep_inside_and_edges(
    rows: Sequence[Row], **fields: Any
) -> tuple[dict[int, float], dict[int, float]]:
    """By seed: progress at the best setting inside the ladder of rates, and at its edges."""
    own = [row for row in rows if all(row.get(key) == value for key, value in fields.items())]
    rates = {row["lr"] for row in own}
    edges = {min(rates, default=0.0), max(rates, default=0.0)}
    inside, outside = ([row for row in own if (row["lr"] in edges) == at] for at in (False, True))
    return best_setting_values(inside), best_setting_values(outside)


def _setting_key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(field) for field in ("study", "arm", "depth", "warmup", "lr"))
