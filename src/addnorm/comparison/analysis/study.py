"""A comparison read from its folder: the spec, the outcome of each cell, the summary, the verdict.

A study is computed from files only. Tables and reports can therefore be rebuilt at any time, also
while the comparison is running.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from addnorm.comparison import folder_layout as files
from addnorm.comparison.analysis.summary import ArmSummary, summarize
from addnorm.comparison.analysis.verdict import build_verdict
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Cell
from addnorm.comparison.outcomes import LossSummary, classify_outcome, progress
from addnorm.comparison.parse import parse_comparison, read_spec
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks import Task, get_task
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
        shared_data = SharedData.read(folder)
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
    def task(self) -> Task:
        """Task of the comparison."""
        return get_task(self.spec.task)

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
        best = min(each.loss for each in self.cells if each.state == "trained")
        return progress(outcome.loss, baseline=self.shared_data.baseline, best=best)

    @cached_property
    def summary(self) -> tuple[ArmSummary, ...]:
        """Summary of each arm at each depth."""
        return summarize(self.cells, score=self.score.name, level=self.spec.confidence_level)

    @cached_property
    def verdict(self) -> tuple[str, ...]:
        """Conclusions in plain sentences; the first two answer the comparison."""
        return build_verdict(
            self.summary, self.cells, seeds=self.spec.seeds, level=self.spec.confidence_level
        )

    def __str__(self) -> str:
        done = sum(each.state != "waiting" for each in self.cells)
        head = f"{self.spec.task} comparison in {self.folder}: {done} of {len(self.cells)} cells"
        return "\n".join([head, *(f"  {each}" for each in self.summary), *self.verdict])

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
