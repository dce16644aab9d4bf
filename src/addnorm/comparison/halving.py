"""Successive halving: an early end for the worse half of an arm's settings.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization,
2015, arXiv 1502.07943. Halved are the settings of each arm at each depth, never the arms: they stay
comparable with each other at their best.
"""

import math
import shutil
from pathlib import Path

from addnorm.comparison import layout as files
from addnorm.comparison.analysis.study import read_cell_rows
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Arm, Cell
from addnorm.comparison.outcomes import LossSummary
from addnorm.comparison.spec import Comparison
from addnorm.train.run_folder import CHECKPOINTS

HALVING_DIVISORS = (4, 2)
"""Parts of the way after which is halved: a quarter, then a half."""


def halving_steps(spec: Comparison) -> list[int | None]:
    """The steps up to which all cells that are left are trained; None for the end."""
    if spec.mode == "fair":
        return [None]
    steps = sorted({spec.steps // share for share in HALVING_DIVISORS if spec.steps // share})
    return [*(step for step in steps if step < spec.steps), None]


def stop_worse_half(spec: Comparison, folder: Path, step: int) -> list[tuple[Cell, CellResult]]:
    """End the worse half of each arm's settings at each depth, by the loss over seeds so far.

    Done again after an interruption it cuts the same: cells that were cut at this step are ranked
    once more, by what they had measured up to it.
    """
    groups: dict[tuple[Arm, int], dict[tuple[int | None, float], list[Cell]]] = {}
    for cell in spec.cells():
        end = CellResult.read(folder / files.CELLS / cell.name)
        if end is None or end.ending != "cut" or end.step >= step:
            group = groups.setdefault((cell.arm, cell.depth), {})
            group.setdefault(cell.setting, []).append(cell)
    made = []
    for settings in groups.values():
        ranked = sorted(settings, key=lambda each: _mean_recent_loss(folder, settings[each], step))
        for cell in (cell for each in ranked[-(-len(ranked) // 2) :] for cell in settings[each]):
            own = folder / files.CELLS / cell.name
            before = CellResult.read(own)
            if before is None or before.ending == "crashed":
                words = f"in the worse half of its arm's settings at step {step}"
                end = CellResult("cut", words, step=step)
                end.save(own)
                shutil.rmtree(own / CHECKPOINTS, ignore_errors=True)
                made.append((cell, end))
    return made


def _mean_recent_loss(folder: Path, cells: list[Cell], step: int) -> float:
    """Mean over seeds of the recent training loss at a step; what broke or has none comes last."""
    losses = []
    for cell in cells:
        end = CellResult.read(folder / files.CELLS / cell.name)
        if end is not None and end.ending in ("diverged", "crashed"):
            return math.inf
        rows = (row for row in read_cell_rows(folder, cell) if row["step"] <= step)
        losses.append(LossSummary.from_rows(rows).recent)
    return math.inf if any(map(math.isnan, losses)) else math.fsum(losses) / len(losses)
