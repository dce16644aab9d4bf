"""Successive halving: an early end for the worse half of an arm's settings.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization,
2015, arXiv 1502.07943. Halved are the settings of each arm at each depth, never the arms: they stay
comparable with each other at their best.
"""

import math
from pathlib import Path

from addnorm.lab import folder as files
from addnorm.lab.finished import Finished
from addnorm.lab.grid import Arm, Cell
from addnorm.lab.judge import Course
from addnorm.lab.spec import Comparison
from addnorm.lab.study import rows_of

SHARES = (4, 2)
"""Parts of the way after which is halved: a quarter, then a half."""


def rungs(spec: Comparison) -> list[int | None]:
    """The steps up to which all cells that are left are trained; None for the end."""
    if spec.mode == "fair":
        return [None]
    steps = sorted({spec.steps // share for share in SHARES if spec.steps // share})
    return [*(step for step in steps if step < spec.steps), None]


def cut(spec: Comparison, folder: Path, step: int) -> None:
    """End the worse half of each arm's settings at each depth, by the loss over seeds so far."""
    groups: dict[tuple[Arm, int], dict[tuple[int | None, float], list[Cell]]] = {}
    for cell in spec.cells():
        end = Finished.read(folder / files.CELLS / cell.name)
        if end is None or end.ending != "cut":
            group = groups.setdefault((cell.arm, cell.depth), {})
            group.setdefault(cell.setting, []).append(cell)
    for settings in groups.values():
        ranked = sorted(settings, key=lambda each: _loss(folder, settings[each]))
        for setting in ranked[-(-len(ranked) // 2) :]:
            for cell in settings[setting]:
                own = folder / files.CELLS / cell.name
                if Finished.read(own) is None:
                    words = f"in the worse half of its arm's settings at step {step}"
                    Finished("cut", words, step=step).save(own)


def _loss(folder: Path, cells: list[Cell]) -> float:
    """Mean over seeds of the recent training loss; what has none comes last."""
    losses = [Course.of(rows_of(folder, cell)).recent for cell in cells]
    return math.inf if any(map(math.isnan, losses)) else math.fsum(losses) / len(losses)
