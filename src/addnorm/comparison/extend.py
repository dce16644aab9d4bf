"""Cells added to a comparison after looking at its results, so that its answer can be trusted.

Two rules, the same for every arm:

- A best learning rate at the end of a sweep is an open end, also if no rate trained. The sweep of
  that arm goes on, half a decade at a time, until the best rate lies inside or
  `MAX_LR_EXTENSIONS` rates were added.
- With `until="decided"`, the best arm and the arms whose difference to it is within noise get half
  as many seeds again, until all differences are decided or the budget is used up. Each look at the
  results raises the level of the intervals; see `sequential_level`.
"""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from addnorm.comparison.analysis.arm_summary import ArmSummary
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.analysis.summary import summarize
from addnorm.comparison.grid import Arm, Grid, use_name_rule
from addnorm.comparison.spec import Extension
from addnorm.comparison.statistics import sequential_level
from addnorm.core.errors import UserError

MAX_LR_EXTENSIONS = 3
"""Learning rates added at either end of a sweep."""
MAX_LR_FACTOR = 10 ** (MAX_LR_EXTENSIONS / 2 + 0.1)
"""Largest distance from the sweep as a factor: half a decade for each rate, and rounding."""
BUDGET_PATTERN = re.compile(r"(\d+)\s*(cells?|m|min|minutes?|h|hours?)?")
MINUTES_PER_UNIT = {"m": 1, "h": 60}


@dataclass(frozen=True)
class Budget:
    """Limit of `until="decided"`: added cells, or minutes of the call. None is no limit."""

    cells: int | None = None
    minutes: float | None = None
    started_at: float = field(default_factory=time.monotonic)

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Parse a number of cells, or a time.

        >>> Budget.parse("40").cells, Budget.parse("2h").minutes
        (40, 120)
        """
        match = BUDGET_PATTERN.fullmatch(text.strip())
        if match is None or not int(match[1]):
            raise UserError(f"budget: expected cells or a time such as 40, 30m or 2h, got {text!r}")
        amount, unit = int(match[1]), (match[2] or "cells")[0]
        if unit == "c":
            return cls(cells=amount)
        return cls(minutes=amount * MINUTES_PER_UNIT[unit])

    def count_affordable_cells(self, study: Study, workers: int) -> float:
        """Return how many more cells may be added."""
        affordable = math.inf
        if self.cells is not None:
            first_cells = set(study.spec.without_seed_extensions().cells())
            affordable = self.cells - len(set(study.spec.cells()) - first_cells)
        if self.minutes is not None:
            seconds = [each.end.seconds for each in study.cells if each.end is not None]
            left = self.started_at + 60 * self.minutes - time.monotonic()
            mean = math.fsum(seconds) / len(seconds) if seconds else math.inf
            affordable = min(affordable, left / mean * workers if mean else math.inf)
        return affordable


def propose_learning_rates(study: Study) -> Extension | None:
    """Return the next learning rate of each arm and depth whose best one is at an end."""
    if not study.spec.extend_lr:
        return None
    grids = []
    first_cells = study.spec.without_extensions().cells()
    for line in study.summary:
        for warmup, lr in _open_ends(line):
            original = [
                cell.lr
                for cell in first_cells
                if (cell.arm, cell.depth, cell.warmup) == (line.arm, line.depth, warmup)
            ]
            if min(original) / MAX_LR_FACTOR < lr < max(original) * MAX_LR_FACTOR:
                grids.append(_make_grid(study, line.arm, line.depth, warmup, lr))
    if not grids:
        return None
    return Extension(reason="lr", grids=tuple(grids), seeds=tuple(study.spec.seed_range))


def propose_seeds(study: Study, budget: Budget, *, workers: int) -> Extension | None:
    """Return more seeds for the arms that are too close to the best one of their depth."""
    grids, count = [], study.spec.seeds
    level = sequential_level(study.spec.num_looks)
    summary = summarize(study.cells, score=study.score.name, level=level)
    for best in (line for line in summary if line.leads):
        at_depth = [line for line in summary if line.depth == best.depth]
        if close := [line for line in at_depth if line.is_undecided]:
            for line in (best, *close):
                if line.best is not None:
                    setting = line.best
                    grids.append(
                        _make_grid(study, line.arm, line.depth, setting.warmup, setting.lr)
                    )
                    count = max(count, len(line.losses))
    if not grids:
        return None
    affordable = budget.count_affordable_cells(study, workers)
    first = study.spec.first_seed
    # The largest step that the budget allows, at most half as many seeds again.
    for total in range(count + max(1, count // 2), count, -1):
        extension = Extension(
            reason="seeds", grids=tuple(grids), seeds=tuple(range(first, first + total))
        )
        if len(set(extension.cells()) - set(study.spec.cells())) <= affordable:
            return extension
    return None


def _open_ends(line: ArmSummary) -> list[tuple[int | None, float]]:
    """Return the warm-up and the next learning rate where the arm's best rate is at an end.

    If no rate trained, the one with the lowest loss counts. If the lowest rate diverged, a lower
    one may train.
    """
    best = line.best or line.closest
    if best is not None and line.edge:
        return [(best.warmup, next_learning_rate(best.lr, up=line.edge == "highest"))]
    if line.best is not None:
        return []
    return [
        (each.warmup, next_learning_rate(each.tried[0], up=False))
        for each in line.stable
        if len(each.tried) > 1 and each.tried[0] in each.diverged
    ]


def next_learning_rate(lr: float, *, up: bool) -> float:
    """Return the next rate of the ladder 1, 3, 10, 30, ...

    >>> next_learning_rate(1e-2, up=True), next_learning_rate(3e-4, up=False)
    (0.03, 0.0001)
    """
    rungs = [float(f"{digit}e{power}") for power in range(-12, 4) for digit in (1, 3)]
    if up:
        return min(rung for rung in rungs if rung > lr * 1.5)
    return max(rung for rung in rungs if rung < lr / 1.5)


def _make_grid(study: Study, arm: Arm, depth: int, warmup: int | None, lr: float) -> Grid:
    values: dict[str, Any] = {
        "wiring": (arm.wiring,),
        "norm": (arm.norm,),
        "depth": (depth,),
        "warmup": ("own",) if warmup is None else (warmup,),
        "lr": (lr,),
        "axes": {name: (value,) for name, value in arm.extras},
    }
    with use_name_rule("free" if study.task.has_free_names else "stored"):
        return Grid(**values)


def describe_extension(extension: Extension, known: Sequence[object]) -> str:
    """Return what an extension adds, as a message.

    Args:
        extension: the added cells
        known: the cells before
    """
    cells = [cell for cell in extension.cells() if cell not in set(known)]
    arms = ", ".join(dict.fromkeys(cell.arm.name for cell in cells))
    if extension.reason == "lr":
        rates = ", ".join(f"{lr:g}" for lr in sorted({cell.lr for cell in cells}))
        return f"best learning rate at the end of the sweep: adding lr {rates} for {arms}"
    return f"too close to call: {len(extension.seeds)} seeds for {arms}"
