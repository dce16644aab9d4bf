"""A comparison as it stands in its folder: what was asked, what became of each cell, what follows.

Everything is read from the folder, so the page and the tables can be made again at any time, also
of a comparison that is still going on.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from addnorm.comparison import layout as files
from addnorm.comparison.analysis.summary import ArmSummary, summarize
from addnorm.comparison.analysis.verdict import build_verdict
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Cell
from addnorm.comparison.outcomes import LossSummary, classify_outcome
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks import Task, get_task
from addnorm.core.rows import Row, read_rows
from addnorm.train.run_folder import ROWS


@dataclass(frozen=True)
class CellOutcome:
    """A cell and what became of it."""

    cell: Cell
    state: str
    """trained, stuck, diverged, crashed, cut or waiting; see judge.py."""
    end: CellResult | None
    """None while it has not ended."""

    @property
    def loss(self) -> float:
        """Final validation loss; NaN where there is none."""
        return math.nan if self.end is None else self.end.loss


@dataclass(frozen=True)
class Study:
    """A comparison, read from its folder."""

    folder: Path
    spec: Comparison
    shared_data: SharedData | None
    """None before anything was prepared."""
    cells: tuple[CellOutcome, ...]
    """Every cell of the spec, in its order."""
    interrupted: bool = False
    """Whether the call of `compare` that returned this study was interrupted."""

    @classmethod
    def open(cls, folder: str | Path) -> "Study":
        """Read a folder that `addnorm compare` made."""
        folder = Path(folder)
        spec = files.read_comparison(folder)
        ground = SharedData.read(folder)
        ends = {cell: CellResult.read(folder / files.CELLS / cell.name) for cell in spec.cells()}
        losses = [end.loss for end in ends.values() if end is not None and math.isfinite(end.loss)]
        best = min(losses, default=math.inf)
        cells = [
            CellOutcome(cell, _cell_state(end, ground, best), end) for cell, end in ends.items()
        ]
        return cls(folder, spec, ground, tuple(cells))

    @property
    def score(self) -> str:
        """The name of the score that is told first: chrf, bits_per_character, accuracy or r2."""
        return self.task.score(self.shared_data)

    @property
    def task(self) -> Task:
        """What its cells learn."""
        return get_task(self.spec.task)

    @property
    def complete(self) -> bool:
        """Whether every cell has ended."""
        return all(each.state != "waiting" for each in self.cells)

    @cached_property
    def summary(self) -> tuple[ArmSummary, ...]:
        """A line for each arm at each depth."""
        return summarize(self.cells, score=self.score)

    @cached_property
    def verdict(self) -> tuple[str, ...]:
        """Sentences; the first two are the answer."""
        return build_verdict(self.summary, self.cells, seeds=self.spec.seeds)

    def rows(self, cell: Cell) -> list[Row]:
        """What was measured in a cell; nothing if it has not begun."""
        return read_cell_rows(self.folder, cell)

    def result(self) -> dict[str, Any]:
        """Plain data, `result.json`."""
        from addnorm.comparison.analysis.export import study_to_dict

        return study_to_dict(self)


def _cell_state(end: CellResult | None, shared_data: SharedData | None, best: float) -> str:
    if end is None or shared_data is None:
        return "waiting"
    if end.ending not in ("done", "diverged"):
        return end.ending
    course = LossSummary(end.loss, end.lowest, math.nan, has_nonfinite=end.ending == "diverged")
    return classify_outcome(course, baseline=shared_data.baseline, best=best)


def read_cell_rows(folder: Path, cell: Cell) -> list[Row]:
    """The rows of a cell; none if it has not begun."""
    path = folder / files.CELLS / cell.name / ROWS
    return list(read_rows(path)) if path.is_file() else []
