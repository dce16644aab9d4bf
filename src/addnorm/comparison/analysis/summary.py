"""What came of each arm at each depth, over its settings and seeds."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Arm, Cell
from addnorm.comparison.statistics import Estimate, paired_difference

UNKNOWN_STATES = {"crashed", "cut", "waiting"}
"""States that say nothing about training."""
REFERENCE_WIRING = "pre_ln"
"""The wiring whose speed the others are told by."""


class EndedCell(Protocol):
    """What is needed of a judged cell."""

    @property
    def cell(self) -> Cell:
        """Which one."""

    @property
    def state(self) -> str:
        """What became of it."""

    @property
    def end(self) -> CellResult | None:
        """How it ended."""

    @property
    def loss(self) -> float:
        """Its final validation loss."""


@dataclass(frozen=True)
class Setting:
    """A warm-up and a learning rate that an arm was tried with."""

    warmup: int | None
    """None for the arm's own schedule."""
    lr: float

    def format(self) -> str:
        """In words.

        >>> Setting(100, 1e-3).told(), Setting(0, 3e-3).told(), Setting(None, 1e-3).told()
        ('lr 0.001, warm-up 100', 'lr 0.003, no warm-up', 'lr 0.001, own schedule')
        """
        if self.warmup is None:
            return f"lr {self.lr:g}, own schedule"
        return f"lr {self.lr:g}, " + (f"warm-up {self.warmup}" if self.warmup else "no warm-up")


@dataclass(frozen=True)
class StableRange:
    """At one warm-up: the learning rates at which cells ran to the end, and those where every seed
    trained; what crashed, was cut or waits says nothing.
    """

    warmup: int | None
    tried: tuple[float, ...]
    trained: tuple[float, ...]

    def format(self) -> str:
        """The range in words; a gap in it is told.

        >>> Stable(0, (1e-3, 3e-3, 1e-2), (1e-3, 3e-3)).told()
        '0.001 to 0.003'
        >>> Stable(0, (1e-3, 3e-3, 1e-2), (1e-3, 1e-2)).told()
        '0.001, 0.01'
        """
        if not self.trained:
            return "none"
        first, last = (self.tried.index(self.trained[n]) for n in (0, -1))
        unbroken = last - first + 1 == len(self.trained)
        if unbroken and len(self.trained) > 1:
            return f"{self.trained[0]:g} to {self.trained[-1]:g}"
        return ", ".join(f"{lr:g}" for lr in self.trained)


@dataclass(frozen=True)
class ArmSummary:
    """One arm at one depth."""

    arm: Arm
    depth: int
    states: dict[str, int]
    """How many cells are what; see judge.STATES."""
    stable: tuple[StableRange, ...]
    """For each warm-up that was tried."""
    best: Setting | None
    """Where most seeds trained, and of those settings the one with the lowest mean loss; None if
    no cell trained."""
    whole: bool
    """Whether all seeds trained there."""
    losses: dict[int, float]
    """Final validation loss there, by seed, of those that trained."""
    loss: Estimate | None
    score: Estimate | None
    leads: bool
    """Whether it is the best arm at this depth."""
    behind: Estimate | None
    """Loss there minus that of the best arm, paired by seed; None for the best itself, and where
    the two share no seed that trained."""
    speed: float
    """Tokens a second relative to the reference at this depth; NaN if there is none."""
    reference: str
    """The arm whose speed is 1."""
    memory: float
    """Bytes, the median over cells."""


def summarize(cells: Sequence[EndedCell], *, score: str) -> tuple[ArmSummary, ...]:
    """A line for each arm at each depth, depths first."""
    depths = sorted({each.cell.depth for each in cells})
    lines: list[ArmSummary] = []
    for depth in depths:
        here = [each for each in cells if each.cell.depth == depth]
        arms = list(dict.fromkeys(each.cell.arm for each in here))
        reference = next((arm for arm in arms if arm.wiring == REFERENCE_WIRING), arms[0])
        pace = _median_rate(each for each in here if each.cell.arm == reference)
        made = []
        for arm in arms:
            own = [each for each in here if each.cell.arm == arm]
            made.append(
                _summarize_arm(own, score=score, reference_rate=pace, reference=reference.name)
            )
        lines += _mark_best(made)
    return tuple(lines)


def _summarize_arm(
    cells: Sequence[EndedCell], *, score: str, reference_rate: float, reference: str
) -> ArmSummary:
    settings: dict[Setting, list[EndedCell]] = {}
    for each in cells:
        settings.setdefault(Setting(*each.cell.setting), []).append(each)
    best = _best_setting(settings)
    there = [each for each in settings[best] if each.state == "trained"] if best else []
    losses = {each.cell.seed: each.loss for each in there}
    ends = [each.end for each in there if each.end is not None]
    scores = [end.scores[score] for end in ends if score in end.scores]
    first = cells[0].cell
    return ArmSummary(
        arm=first.arm,
        depth=first.depth,
        states=dict(Counter(each.state for each in cells)),
        stable=_stable_ranges(settings),
        best=best,
        whole=best is not None and len(there) == len(settings[best]),
        losses=losses,
        loss=Estimate.from_values(list(losses.values())),
        score=Estimate.from_values(scores),
        leads=False,
        behind=None,
        speed=_median_rate(cells) / reference_rate,
        reference=reference,
        memory=_median(
            each.end.memory for each in cells if each.end is not None and each.end.memory
        ),
    )


def _best_setting(settings: dict[Setting, list[EndedCell]]) -> Setting | None:
    """More seeds that trained count before a lower loss: luck is not a recommendation."""

    def rank(setting: Setting) -> tuple[float, float]:
        trained = [each.loss for each in settings[setting] if each.state == "trained"]
        if not trained:
            return 0.0, math.inf
        return -len(trained) / len(settings[setting]), math.fsum(trained) / len(trained)

    found = min(settings, key=rank)
    return found if any(each.state == "trained" for each in settings[found]) else None


def _stable_ranges(settings: dict[Setting, list[EndedCell]]) -> tuple[StableRange, ...]:
    made = []
    for warmup in dict.fromkeys(setting.warmup for setting in settings):
        here = {s.lr: cells for s, cells in settings.items() if s.warmup == warmup}
        tried = tuple(lr for lr in sorted(here) if not {e.state for e in here[lr]} & UNKNOWN_STATES)
        trained = tuple(lr for lr in tried if all(each.state == "trained" for each in here[lr]))
        made.append(StableRange(warmup, tried, trained))
    return tuple(made)


def _mark_best(lines: list[ArmSummary]) -> list[ArmSummary]:
    """With the distance of each to the best at this depth, seed by seed."""
    known = [line for line in lines if line.loss is not None]
    if not known:
        return lines
    best = min(known, key=lambda line: (not line.whole, line.loss.mean if line.loss else math.inf))
    return [
        replace(line, leads=True)
        if line is best
        else replace(line, behind=paired_difference(line.losses, best.losses))
        for line in lines
    ]


def _median_rate(cells: Iterable[EndedCell]) -> float:
    rates = [each.end.rate for each in cells if each.end is not None]
    return _median(rate for rate in rates if math.isfinite(rate))


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return median(found) if found else math.nan
