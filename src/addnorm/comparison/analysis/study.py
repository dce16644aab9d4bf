"""A comparison read from its folder: the spec, the outcome of each cell, the summary, the verdict.

A study is computed from files only. Tables and reports can therefore be rebuilt at any time, also
while the comparison is running.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from addnorm.comparison import folder_layout as files
from addnorm.comparison.analysis.arm_summary import ArmSummary
from addnorm.comparison.analysis.frames import (
    Library,
    cell_records,
    make_frame,
    row_records,
    summary_records,
)
from addnorm.comparison.analysis.summary import summarize
from addnorm.comparison.analysis.verdict import build_verdict
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Cell
from addnorm.comparison.outcomes import LossSummary, classify_outcome, progress
from addnorm.comparison.parse import parse_comparison, read_spec
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks import Task, get_stored_task
from addnorm.comparison.tasks.function import FunctionTask
from addnorm.core.display import render_html
from addnorm.core.errors import UserError
from addnorm.core.rows import Row
from addnorm.core.validation import check_path
from addnorm.tasks import Score
from addnorm.train.run_folder import ROWS, read_run_rows


@dataclass(frozen=True)
class CellOutcome:
    """A cell with its result and its state."""

    cell: Cell
    state: str
    """trained, stuck, diverged, crashed, cut or waiting; see `outcomes.STATES`."""
    end: CellResult | None
    """None until the cell is finished."""

    @property
    def loss(self) -> float:
        """Final validation loss; NaN if the cell has none."""
        return math.nan if self.end is None else self.end.loss


@dataclass(frozen=True)
class Study:
    """State of a comparison at the time its folder is read."""

    folder: Path
    spec: Comparison
    shared_data: SharedData | None
    """None until the data are prepared."""
    cells: tuple[CellOutcome, ...]
    """All cells of the spec, in its order."""
    interrupted: bool = False
    """Whether the call of `run_comparison` that returned the study was interrupted."""

    @classmethod
    def open(cls, folder: str | Path) -> "Study":
        """Read the output folder of `addnorm compare`."""
        check_path("folder", folder)
        folder = Path(folder)
        spec = read_comparison(folder)
        shared_data = _complete_baseline(folder, spec, SharedData.read(folder))
        results = {cell: CellResult.read(folder / files.CELLS / cell.name) for cell in spec.cells()}
        losses = [end.loss for end in results.values() if end is not None]
        best = min(filter(math.isfinite, losses), default=math.inf)
        cells = [
            CellOutcome(cell, _cell_state(result, shared_data, best), result)
            for cell, result in results.items()
        ]
        return cls(folder, spec, shared_data, tuple(cells))

    @property
    def score(self) -> Score:
        """The task's primary score."""
        return self.task.score(self.shared_data)

    @property
    def has_scores(self) -> bool:
        """Whether cells get the primary score."""
        scored = self.spec.score > 0 or any(line.score for line in self.summary)
        return scored and bool(self.score.name)

    @property
    def task(self) -> Task:
        """Task of the comparison."""
        return get_stored_task(self.spec.task, self.shared_data)

    @property
    def complete(self) -> bool:
        """Whether all cells are finished."""
        return all(each.state != "waiting" for each in self.cells)

    def progress(self, outcome: CellOutcome) -> float:
        """Return the progress of a cell from the baseline (0) to the best cell (1).

        Cells that did not train have 0, like a model that ignores its input.
        """
        if outcome.state != "trained" or self.shared_data is None:
            return 0.0
        if math.isnan(self.shared_data.baseline):
            return 1.0
        best = min(each.loss for each in self.cells if each.state == "trained")
        return progress(outcome.loss, baseline=self.shared_data.baseline, best=best)

    @cached_property
    def summary(self) -> tuple[ArmSummary, ...]:
        """Summary of each arm at each depth."""
        return summarize(
            self.cells,
            score=self.score.name,
            level=self.spec.confidence_level,
            objective=self.task.objective,
        )

    @cached_property
    def verdict(self) -> tuple[str, ...]:
        """Conclusions in plain sentences; the first two answer the comparison."""
        return build_verdict(
            self.summary,
            self.cells,
            seeds=self.spec.seeds,
            level=self.spec.confidence_level,
            objective=self.task.objective,
        )

    def __str__(self) -> str:
        done = sum(each.state != "waiting" for each in self.cells)
        head = f"{self.spec.task} comparison in {self.folder}: {done} of {len(self.cells)} cells"
        lines = [f"  {each}" for each in self.summary]
        return "\n".join([head, *lines, *self.verdict])

    def _repr_html_(self) -> str:
        objective = self.task.objective
        rows = [
            (
                line.arm.name,
                line.depth,
                ", ".join(f"{count} {state}" for state, count in line.states.items() if count),
                line.format_best(),
                line.value.format() if line.value else "",
                line.behind.format() if line.behind else "best" if line.leads else "",
            )
            for line in self.summary
        ]
        head = ("arm", "depth", "cells", "best setting", objective.label, "gap to best")
        title = f"Comparison on {self.task.noun} in {self.folder}"
        return render_html(title, self.verdict, head=head, rows=rows)

    def best(self, depth: int | None = None) -> ArmSummary | None:
        """Return the best arm with its best setting; None if none trained.

        Args:
            depth: the depth; by default the one with the best result
        """
        lines = [each for each in self.summary if each.leads and depth in (None, each.depth)]
        return min(lines, key=lambda each: each.loss.mean if each.loss else math.inf, default=None)

    def to_frame(self, *, library: Library = "pandas") -> Any:
        """Return one row for each cell: settings, state, final metrics.

        Args:
            library: pandas or polars
        """
        return make_frame(cell_records(self), library)

    def rows_to_frame(self, *, library: Library = "pandas") -> Any:
        """Return all measured rows of all cells, with the settings of their cells.

        Args:
            library: pandas or polars
        """
        return make_frame(row_records(self), library)

    def summary_to_frame(self, *, library: Library = "pandas") -> Any:
        """Return one row for each arm and depth: best setting, means, half widths of intervals.

        Args:
            library: pandas or polars
        """
        return make_frame(summary_records(self), library)

    def rows(self, cell: Cell) -> list[Row]:
        """Return the measured rows of a cell; none if the cell has not started."""
        return read_cell_rows(self.folder, cell)


def read_comparison(folder: Path) -> Comparison:
    """Read the spec of a comparison's folder."""
    path = folder / files.SPEC
    if not path.is_file():
        raise UserError(
            f"expected the output folder of `addnorm compare`, got {folder}, which has no "
            f"{files.SPEC}"
        )
    try:
        return parse_comparison(read_spec(path, verify=True), allow_unknown=True)
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}; start again in another folder") from None


def read_cell_rows(folder: Path, cell: Cell) -> list[Row]:
    """Return the measured rows of a cell; none if the cell has not started.

    Raises:
        UserError: the rows have changed since they were written
    """
    run = folder / files.CELLS / cell.name
    CellResult.check_rows(run, ROWS)
    if not (run / ROWS).exists():
        return []
    return list(read_run_rows(run))


def _complete_baseline(
    folder: Path, spec: Comparison, shared_data: SharedData | None
) -> SharedData | None:
    """Estimate the baseline from the cells if the task does not state it."""
    if shared_data is None or not math.isnan(shared_data.baseline):
        return shared_data
    task = get_stored_task(spec.task, shared_data)
    if not isinstance(task, FunctionTask):
        return shared_data
    rows = (read_cell_rows(folder, cell) for cell in spec.cells())
    return replace(shared_data, baseline=task.estimate_baseline(rows))


def _cell_state(result: CellResult | None, shared_data: SharedData | None, best: float) -> str:
    if result is None or shared_data is None:
        return "waiting"
    if result.ending not in ("done", "diverged"):
        return result.ending
    losses = LossSummary(
        last=result.loss,
        lowest=result.lowest,
        recent=result.recent,
        has_nonfinite=result.ending == "diverged",
    )
    return classify_outcome(losses, baseline=shared_data.baseline, best=best)
