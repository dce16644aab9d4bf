"""Successive halving: stop the worse half of each arm's settings early.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization,
2015, arXiv 1502.07943. Settings (warm-up, learning rate) are halved within each arm and depth; arms
are never stopped, so that they can be compared at their best settings.
"""

import math
import shutil
from pathlib import Path

from addnorm.comparison import folder_layout as files
from addnorm.comparison.analysis.study import read_cell_rows
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Arm, Cell
from addnorm.comparison.outcomes import LossSummary
from addnorm.comparison.spec import Comparison
from addnorm.train.run_folder import CHECKPOINTS, ROWS

HALVING_DIVISORS = (4, 2)
"""Settings are halved after `steps // divisor` steps: at a quarter, then at half."""


def halving_steps(spec: Comparison) -> list[int | None]:
    """Return the steps at which training pauses for halving; the last entry, None, is the end."""
    if spec.mode == "fair":
        return [None]
    steps = sorted({spec.steps // each for each in HALVING_DIVISORS if spec.steps // each})
    return [*(step for step in steps if step < spec.steps), None]


def stop_worse_half(spec: Comparison, folder: Path, step: int) -> list[tuple[Cell, CellResult]]:
    """Stop the worse half of each arm's settings at each depth, by mean training loss over seeds.

    Repeated after an interruption, the function stops the same cells: cells stopped at this step
    are ranked again, by their losses up to it.

    Returns:
        The cells stopped by this call, with their results.
    """
    groups: dict[tuple[Arm, int], dict[tuple[int | None, float], list[Cell]]] = {}
    for cell in spec.cells():
        result = CellResult.read(folder / files.CELLS / cell.name)
        if result is None or result.ending != "cut" or result.step >= step:
            group = groups.setdefault((cell.arm, cell.depth), {})
            group.setdefault(cell.setting, []).append(cell)
    stopped = []
    for settings in groups.values():
        ranked = sorted(settings, key=lambda each: _mean_recent_loss(folder, settings[each], step))
        worse = ranked[-(-len(ranked) // 2) :]  # of an odd number the larger half continues
        for cell in (cell for setting in worse for cell in settings[setting]):
            run = folder / files.CELLS / cell.name
            result = CellResult.read(run)
            if result is None or result.ending == "crashed":
                reason = f"in the worse half of its arm's settings at step {step}"
                result = CellResult("cut", reason, step=step)
                result.save(run, rows=ROWS)
                shutil.rmtree(run / CHECKPOINTS, ignore_errors=True)
                stopped.append((cell, result))
    return stopped


def _mean_recent_loss(folder: Path, cells: list[Cell], step: int) -> float:
    """Return the mean over seeds of the recent training loss; infinite if a cell has none."""
    losses = []
    for cell in cells:
        result = CellResult.read(folder / files.CELLS / cell.name)
        if result is not None and result.ending in ("diverged", "crashed"):
            return math.inf
        rows = (row for row in read_cell_rows(folder, cell) if row["step"] <= step)
        losses.append(LossSummary.from_rows(rows).recent)
    return math.inf if any(map(math.isnan, losses)) else math.fsum(losses) / len(losses)
