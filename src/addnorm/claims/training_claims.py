"""Claims by training: comparisons whose cells become rows and are judged by progress.

Each arm is tuned over the same learning rates. `progress_scale.py` chooses the setting of each seed
and scales progress.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from addnorm.claims.cell_cache import (
    cell_commits,
    copy_finished_cells,
    read_shared_rows,
    record_commits,
    relocate_data,
    small_demo_corpus,
    split_shared_cells,
)
from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, ChartSpec, Claim, ClaimWorkspace
from addnorm.claims.external_datasets import (
    CORPORA,
    EXTERNAL_NAMES,
    find_missing_data,
    make_external_corpus,
)
from addnorm.claims.progress_scale import (
    best_setting_values,
    raw_progress,
    scale_progress,
    select_fields,
)
from addnorm.claims.table_datasets import make_table
from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.outcomes import NO_LEARNING_RATIO, TRAINED_PROGRESS, LossSummary
from addnorm.comparison.run import run_comparison
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.errors import UserError
from addnorm.core.rows import Row

PROGRESS_DEFINITION = (
    "Progress is how much of the loss of a model that only knows how often each token occurs an "
    "arm removes, relative to the reference of the field: 0 is that model, 1 the reference's mean "
    "over seeds at its best setting. The reference is Pre-LN with LayerNorm unless stated "
    "otherwise. Progress is measured at a fixed number of steps, so a slow arm scores as low as "
    "one that fails; a cell that diverged has progress 0. Each arm is judged, seed by seed, at the "
    "setting where its mean progress over the other seeds is highest. Two premises hold for every "
    "claim: the reference removes more than 5 % of that loss, and no arm with several learning "
    "rates is clearly better at the lowest or highest of them than between."
)
TABLE_PROGRESS_DEFINITION = PROGRESS_DEFINITION.replace(
    "how often each token occurs", "the distribution of the target"
)
TRAINED_THRESHOLD = TRAINED_PROGRESS
"""Progress above which an arm has trained, by convention the threshold of all comparisons."""
NEGLIGIBLE_PROGRESS = 0.05
"""Difference in progress below which two arms count as equal. A convention set before the first
run, about as large as the variation between seeds."""
MIN_REFERENCE_PROGRESS = round(1 - NO_LEARNING_RATIO, 6)
"""Fraction of the baseline's loss that the reference must remove, by the rule of comparisons."""
SMOKE_RECORDS = 50
"""Training records of a smoke run."""
DATA_FOLDER = "data"
"""Folder beside the studies for small corpora and tables."""
LABELED_FIELDS = ("depth", "warmup")
"""Fields whose values are shown together with the field name."""
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
NOTHING_LOOKED_AT = (
    "no cell on these data; settings were taken from the claim on demo data. No run of the third "
    "round had been looked at when the rule was written."
)
RULE_CHANGED_ON_SEEN_ROWS = (
    " The rows are those of the second round. Whoever wrote the rule of today, before the third "
    "round, had seen them."
)
TRAINED_GUIDE = ((TRAINED_THRESHOLD, "trained, from here on"),)


def make_progress_chart(*group_by: str, guides: tuple[tuple[float, str], ...] = ()) -> ChartSpec:
    """Return the chart of progress over the learning rate.

    Args:
        group_by: fields that separate the lines; by default the arm
        guides: horizontal guide lines, such as `TRAINED_GUIDE`
    """
    return ChartSpec(
        name="progress",
        x="lr",
        y="progress",
        group_by=group_by or ("arm",),
        log_x=True,
        guides=guides,
    )


class TrainedClaim(Claim):
    """A claim whose rows include the progress of trained arms."""

    method = "by training"
    pilot = FIRST_PILOT + SECOND_PILOT
    group_fields: ClassVar[tuple[str, ...]] = ("study", "arm")
    """Fields that separate the groups that are tuned independently."""

    @abstractmethod
    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """Return the checks of the claim, with its own premises.

        rows: rows of the claim, whose progress is relative to the reference
        """

    def is_reference(self, row: Row) -> bool:
        """Return whether a row belongs to the reference, whose progress is 1."""
        return bool(row["arm"] == "pre_ln")

    def scale_of(self, study: str) -> str:
        """Return the name of a study's scale; override it if the studies have different data."""
        return ""

    def scale_rows(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with progress relative to the reference."""
        return scale_progress(rows, is_reference=self.is_reference, scale_of=self.scale_of)

    def chart_rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        return self.scale_rows(rows)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        scaled = self.scale_rows(rows)
        return [
            *self._reference_premises(rows),
            *sweep_premises(scaled, self.group_fields),
            *self.findings(scaled),
        ]

    def _reference_premises(self, rows: Sequence[Row]) -> list[Check]:
        """Return the premise that the reference learns, for each scale."""
        own = [row for row in rows if row["name"] == "progress"]
        checks = []
        for scale in dict.fromkeys(self.scale_of(row["study"]) for row in own) or [""]:
            reference = [
                row
                for row in own
                if self.is_reference(row) and self.scale_of(row["study"]) == scale
            ]
            what = ", ".join(filter(None, (scale, "reference: progress before scaling")))
            learned = estimate_over_seeds(best_setting_values(reference))
            checks.append(Check(what, learned, low=MIN_REFERENCE_PROGRESS, premise=True))
        return checks


class ComparisonClaim(TrainedClaim):
    """A claim whose numbers come from comparisons."""

    row_names: ClassVar[tuple[str, ...]] = ("progress",)
    """Rows of a cell to keep: progress, loss, train_loss, score (one per metric) or valid (one per
    validation)."""

    @abstractmethod
    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Return the comparisons to train, by study name."""

    def records(self, budget: Budget) -> Mapping[str, int]:
        """Return the number of training records of studies that use a part of the demo corpus."""
        # Reading the whole corpus would dominate a smoke run.
        return dict.fromkeys(self.comparisons(budget), SMOKE_RECORDS) if budget == "smoke" else {}

    def tables(self, budget: Budget) -> Mapping[str, str]:
        """Return the table names of studies on tables; see `claims/table_datasets.py`."""
        return {}

    def corpora(self, budget: Budget) -> Mapping[str, str]:
        """Return the corpus names of studies on real text; see `claims/external_datasets.py`."""
        return {}

    def find_missing_data(self, budget: Budget) -> str:
        names = {*self.corpora(budget).values(), *self.tables(budget).values()} & EXTERNAL_NAMES
        return next(filter(None, map(find_missing_data, sorted(names))), "")

    def settings(self, budget: Budget) -> dict[str, Any]:
        few, tables, corpora = self.records(budget), self.tables(budget), self.corpora(budget)
        return {
            name: spec.canonical_dict()
            | ({"records": few[name]} if name in few and name not in tables else {})
            | ({"table": tables[name]} if name in tables else {})
            | ({"corpus": corpora[name]} if name in corpora else {})
            for name, spec in self.comparisons(budget).items()
        }

    def cost(self, budget: Budget) -> str:
        specs = self.comparisons(budget).values()
        steps = sum(len(spec.cells()) * spec.steps for spec in specs)
        return f"{sum(len(spec.cells()) for spec in specs):,} cells, {steps:,} steps in all"

    def rows(self, budget: Budget, workspace: ClaimWorkspace) -> list[Row]:
        subsets: dict[str, int | str] = {
            **self.records(budget),
            **self.tables(budget),
            **self.corpora(budget),
        }
        settings, rows = self.settings(budget), list[Row]()
        for name, spec in self.comparisons(budget).items():
            shared = read_shared_rows(
                workspace.folder.parent, budget, settings[name], self.row_names
            )
            rest, known = split_shared_cells(spec, shared)
            rows += [{**row, "study": name} for row in known]
            if rest is not None:
                study = _run_comparison(rest, workspace, subsets.get(name))
                rows += cell_rows(study, name, self.row_names)
        return rows


def _run_comparison(spec: Comparison, workspace: ClaimWorkspace, subset: int | str | None) -> Study:
    """Run a comparison to the end, reusing finished cells of other claims.

    subset: the name of a table or external corpus, or the number of training records of the demo
        corpus; None uses the whole demo corpus.
    """
    folder = workspace.studies / (spec.digest if subset is None else f"{spec.digest}-{subset}")
    if subset is not None:
        data_folder = workspace.studies.parent / DATA_FOLDER
        if isinstance(subset, int):
            data = small_demo_corpus(data_folder, spec.task, subset)
        elif subset in CORPORA:
            data = make_external_corpus(data_folder, subset)
        else:
            data = make_table(data_folder, subset)
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
            f"{waiting} of {len(study.cells)} cells in {folder} are not finished, another process "
            "may be training them; wait for it and rerun the same command"
        )
    _raise_on_crashes(study)
    return study


def cell_rows(study: Study, name: str, row_names: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of every cell of a study.

    Args:
        study: a finished comparison
        name: name of the study within the claim
        row_names: rows to keep; see `ComparisonClaim.row_names`
    """
    shared_data = study.shared_data
    assert shared_data is not None
    commits = cell_commits(study.folder)
    for each in study.cells:
        cell = each.cell
        fields: dict[str, Any] = {"study": name, "arm": cell.arm.name, "depth": cell.depth}
        fields |= {"warmup": cell.warmup, "lr": cell.lr, "seed": cell.seed, "state": each.state}
        fields |= {"commit": commits.get(cell.name, "")}
        for row_name, value, more in _iter_measurements(study, each, shared_data.baseline):
            if row_name in row_names:
                yield {"name": row_name, "value": _round_value(value), **fields, **more}


def _raise_on_crashes(study: Study) -> None:
    """Raise if a cell crashed: a comparison with missing seeds is not fair."""
    crashed = [each for each in study.cells if each.state == "crashed" and each.end is not None]
    if crashed:
        first = crashed[0]
        raise RuntimeError(
            f"{len(crashed)} of {len(study.cells)} cells crashed, {first.cell.name} first: "
            f"{first.end.why if first.end else ''}"
        )


def _iter_measurements(
    study: Study, outcome: CellOutcome, baseline: float
) -> Iterator[tuple[str, float, dict[str, Any]]]:
    assert outcome.end is not None
    rows = study.rows(outcome.cell)
    yield "progress", raw_progress(outcome.loss, baseline=baseline), {}
    yield "loss", outcome.loss, {}
    yield "train_loss", LossSummary.from_rows(rows).recent, {}
    for name, value in outcome.end.scores.items():
        yield "score", value, {"which": name}
    for row in rows:
        if row["name"] == "loss" and row.get("split") == "valid":
            value = raw_progress(float(row["value"]), baseline=baseline)
            yield "valid", value, {"step": row["step"], "steps": study.spec.steps}


def _round_value(value: float) -> float:
    """Round to six digits, which keeps stored rows small."""
    return float(f"{value:.6g}")


def sweep_premises(rows: Sequence[Row], group_fields: Sequence[str]) -> list[Check]:
    """Return the premise that no group is best at an edge of its sweep.

    An arm with a single learning rate, fixed in advance, has no sweep.

    group_fields: fields that separate the groups that are tuned independently
    """
    own = [row for row in rows if row["name"] == "progress"]
    checks = []
    for group in dict.fromkeys(tuple(row[field] for field in group_fields) for row in own):
        fields = dict(zip(group_fields, group, strict=True))
        if len({row["lr"] for row in select_fields(own, **fields)}) == 1:
            continue
        label = ", ".join(
            f"{name} {value}" if name in LABELED_FIELDS else str(value)
            for name, value in fields.items()
        )
        what = f"{label}: progress inside the ladder minus that at its edges"
        checks.append(
            Check(
                what,
                paired_difference(*sweep_inside_and_edges(own, **fields)),
                low=-NEGLIGIBLE_PROGRESS,
                premise=True,
            )
        )
    return checks


def sweep_inside_and_edges(
    rows: Sequence[Row], **fields: Any
) -> tuple[dict[int, float], dict[int, float]]:
    """Return the best progress by seed: inside the learning-rate sweep, and at its two edges."""
    own = select_fields(rows, **fields)
    rates = {row["lr"] for row in own}
    edges = {min(rates, default=0.0), max(rates, default=0.0)}
    inside, outside = ([row for row in own if (row["lr"] in edges) == at] for at in (False, True))
    return best_setting_values(inside), best_setting_values(outside)
