"""Summary of each arm at each depth, over its settings and seeds."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Arm, Cell
from addnorm.comparison.outcomes import VALIDATION_LOSS, Objective
from addnorm.comparison.statistics import CONFIDENCE_LEVEL, Estimate, paired_difference

UNKNOWN_STATES = {"crashed", "cut", "waiting"}
"""States that carry no information about training."""
REFERENCE_WIRING = "pre_ln"
"""Wiring whose speed is 1 in the summary, if it takes part."""
OWN_SCHEDULE = "own schedule"


class EndedCell(Protocol):
    """The attributes of `CellOutcome` that summaries use."""

    @property
    def cell(self) -> Cell:
        """Arm, depth, warm-up, learning rate and seed of the training run."""

    @property
    def state(self) -> str:
        """State of the cell; see `outcomes.STATES`."""

    @property
    def end(self) -> CellResult | None:
        """Result of the cell; None until it is finished."""

    @property
    def loss(self) -> float:
        """Final validation loss."""


@dataclass(frozen=True)
class Setting:
    """A warm-up and a learning rate of an arm."""

    warmup: int | None
    """Warm-up steps; None for the recommended schedule of the arm."""
    lr: float

    def format(self) -> str:
        """Return the setting as text.

        >>> Setting(100, 1e-3).format(), Setting(0, 3e-3).format(), Setting(None, 1e-3).format()
        ('lr 0.001, warm-up 100', 'lr 0.003, no warm-up', 'lr 0.001, own schedule')
        """
        if self.warmup is None:
            return f"lr {self.lr:g}, own schedule"
        return f"lr {self.lr:g}, " + (f"warm-up {self.warmup}" if self.warmup else "no warm-up")


@dataclass(frozen=True)
class StableRange:
    """Learning rates at one warm-up: those that ran to the end and those where every seed trained.

    Learning rates with a crashed, cut or waiting cell are left out.
    """

    warmup: int | None
    tried: tuple[float, ...]
    trained: tuple[float, ...]
    diverged: tuple[float, ...] = ()
    """Rates of `tried` at which a seed diverged."""
    num_waiting: int = 0
    """Rates with a cell that is not finished."""

    def format(self) -> str:
        """Return the learning rates where every seed trained: a range, or a list if it has gaps.

        >>> StableRange(0, (1e-3,), (), num_waiting=2).format()
        'none yet'
        >>> StableRange(0, (), ()).format()
        'unknown'
        >>> StableRange(0, (1e-3, 3e-3, 1e-2), (1e-3, 3e-3)).format()
        '0.001 to 0.003'
        >>> StableRange(0, (1e-3, 3e-3, 1e-2), (1e-3, 1e-2)).format()
        '0.001, 0.01'
        """
        if not self.trained:
            if self.num_waiting:
                return "none yet"
            return "none" if self.tried else "unknown"
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
    """Number of cells in each state; see `outcomes.STATES`."""
    stable: tuple[StableRange, ...]
    """One entry per warm-up."""
    best: Setting | None
    """The setting with the most trained seeds and, among those, the lowest mean loss; None if no
    cell trained."""
    edge: str
    """`highest` or `lowest` if the best learning rate is an end of those tried with its warm-up, so
    that a better one may lie outside; otherwise empty, also while cells are not finished. If no
    cell trained, that of `closest`."""
    whole: bool
    """Whether all seeds trained at the best setting."""
    losses: dict[int, float]
    """Final validation losses of the trained seeds at the best setting, by seed."""
    loss: Estimate | None
    score: Estimate | None
    leads: bool
    """Whether the arm is the best one at this depth."""
    behind: Estimate | None
    """Loss minus the loss of the best arm, paired by seed; None for the best arm itself and for
    arms that share no trained seed with it."""
    speed: float
    """Tokens per second relative to the reference arm at this depth; NaN if unknown."""
    reference: str
    """Name of the reference arm, whose speed is 1."""
    memory: float
    """Peak memory in bytes, the median over cells."""
    unfinished: int = 0
    """Seeds of the best setting that are not finished."""
    closest: Setting | None = None
    """If no cell trained, the setting with the lowest mean loss, of those where no seed diverged
    and all are finished."""

    @property
    def is_undecided(self) -> bool:
        """Whether the arm trained and its difference to the best arm is within noise."""
        if self.leads or self.loss is None:
            return False
        return self.behind is None or not self.behind.excludes_zero

    def format_best(self) -> str:
        """Return the best setting as text, with the end of the learning rates it is at."""
        if self.best is None:
            if self.states.get("waiting"):
                return "not finished"
            if set(self.states) <= UNKNOWN_STATES:
                return "none ran to its end"
            end = f" (lowest loss at the {self.edge} lr tried)" if self.edge else ""
            return f"none trained{end}"
        notes = [f"{self.edge} lr tried"] if self.edge else []
        notes += [self.describe_seeds()] if not self.whole else []
        return self.best.format() + (f" ({'; '.join(notes)})" if notes else "")

    def describe_seeds(self) -> str:
        """Return why not all seeds trained at the best setting; empty if they did."""
        if self.unfinished:
            return f"{self.unfinished} of its seeds not finished"
        return "" if self.whole else "not every seed"

    def __str__(self) -> str:
        return self.format()

    def format(self, objective: Objective = VALIDATION_LOSS) -> str:
        """Return the summary as a line of text.

        objective: what cells are judged by.
        """
        states = ", ".join(f"{count} {state}" for state, count in self.states.items() if count)
        best = f"; best at {self.format_best()}" if self.best else ""
        value = objective.to_estimate(self.loss).format() if self.loss else ""
        loss = f", {objective.column} {value}" if value else ""
        behind = f", {self.behind.format()} behind the best" if self.behind else ""
        return f"{self.arm.name}, depth {self.depth}: {states}{best}{loss}{behind}"


def summarize(
    cells: Sequence[EndedCell], *, score: str, level: float = CONFIDENCE_LEVEL
) -> tuple[ArmSummary, ...]:
    """Return a summary for each arm at each depth, ordered by depth.

    Args:
        cells: the cells of a comparison
        score: name of the primary score
        level: confidence level of the intervals
    """
    depths = sorted({each.cell.depth for each in cells})
    lines: list[ArmSummary] = []
    for depth in depths:
        at_depth = [each for each in cells if each.cell.depth == depth]
        arms = list(dict.fromkeys(each.cell.arm for each in at_depth))
        reference = next((arm for arm in arms if arm.wiring == REFERENCE_WIRING), arms[0])
        rate = _median_rate(each for each in at_depth if each.cell.arm == reference)
        summaries = [
            _summarize_arm(
                [each for each in at_depth if each.cell.arm == arm],
                score=score,
                level=level,
                reference_rate=rate,
                reference=reference.name,
            )
            for arm in arms
        ]
        lines += _mark_best(summaries, level)
    return tuple(lines)


def _summarize_arm(
    cells: Sequence[EndedCell], *, score: str, level: float, reference_rate: float, reference: str
) -> ArmSummary:
    settings: dict[Setting, list[EndedCell]] = {}
    for each in cells:
        settings.setdefault(Setting(*each.cell.setting), []).append(each)
    best = _best_setting(settings)
    closest = None if best else _closest_setting(settings)
    is_finished = all(each.state != "waiting" for each in cells)
    trained = [each for each in settings[best] if each.state == "trained"] if best else []
    losses = {each.cell.seed: each.loss for each in trained}
    results = [each.end for each in trained if each.end is not None]
    scores = [result.scores[score] for result in results if score in result.scores]
    first = cells[0].cell
    return ArmSummary(
        arm=first.arm,
        depth=first.depth,
        states=dict(Counter(each.state for each in cells)),
        stable=_stable_ranges(settings),
        best=best,
        edge=_find_edge(best or closest, settings) if is_finished else "",
        whole=best is not None and len(trained) == len(settings[best]),
        losses=losses,
        loss=Estimate.from_values(list(losses.values()), level=level),
        score=Estimate.from_values(scores, level=level),
        leads=False,
        behind=None,
        speed=_median_rate(cells) / reference_rate,
        reference=reference,
        memory=_median(
            each.end.memory for each in cells if each.end is not None and each.end.memory
        ),
        unfinished=sum(each.state == "waiting" for each in settings[best]) if best else 0,
        closest=closest,
    )


def _best_setting(settings: dict[Setting, list[EndedCell]]) -> Setting | None:
    """Rank by the fraction of trained seeds first, so that one lucky seed does not win.

    Settings are ranked by the seeds that all of them have. Otherwise a setting that got more seeds
    later would compete with others that have few, perhaps lucky ones.
    """
    common = set.intersection(*({each.cell.seed for each in own} for own in settings.values()))

    def rank(setting: Setting) -> tuple[float, float]:
        own = [each for each in settings[setting] if not common or each.cell.seed in common]
        trained = [each.loss for each in own if each.state == "trained"]
        if not trained:
            return 0.0, math.inf
        return -len(trained) / len(own), math.fsum(trained) / len(trained)

    best = min(settings, key=rank)
    return best if any(each.state == "trained" for each in settings[best]) else None


def _closest_setting(settings: dict[Setting, list[EndedCell]]) -> Setting | None:
    losses = {
        setting: math.fsum(each.loss for each in cells) / len(cells)
        for setting, cells in settings.items()
        if all(each.state == "stuck" for each in cells)
    }
    return min(losses, key=lambda setting: losses[setting], default=None)


def _find_edge(best: Setting | None, settings: dict[Setting, list[EndedCell]]) -> str:
    """Return whether the best learning rate is the highest or the lowest with its warm-up."""
    if best is None:
        return ""
    rates = [setting.lr for setting in settings if setting.warmup == best.warmup]
    if len(rates) < 2:  # a single rate was chosen, not searched for
        return ""
    return {max(rates): "highest", min(rates): "lowest"}.get(best.lr, "")


def _stable_ranges(settings: dict[Setting, list[EndedCell]]) -> tuple[StableRange, ...]:
    ranges = []
    for warmup in dict.fromkeys(setting.warmup for setting in settings):
        states = {
            setting.lr: {each.state for each in cells}
            for setting, cells in settings.items()
            if setting.warmup == warmup
        }
        tried = tuple(lr for lr in sorted(states) if not states[lr] & UNKNOWN_STATES)
        trained = tuple(lr for lr in tried if states[lr] == {"trained"})
        diverged = tuple(lr for lr in tried if "diverged" in states[lr])
        num_waiting = sum("waiting" in each for each in states.values())
        ranges.append(StableRange(warmup, tried, trained, diverged, num_waiting))
    return tuple(ranges)


def _mark_best(lines: list[ArmSummary], level: float) -> list[ArmSummary]:
    """Mark the best arm of a depth and set the difference of each other arm to it."""
    known = [line for line in lines if line.loss is not None]
    if not known:
        return lines
    best = min(known, key=lambda line: (not line.whole, line.loss.mean if line.loss else math.inf))
    return [
        replace(line, leads=True)
        if line is best
        else replace(line, behind=paired_difference(line.losses, best.losses, level=level))
        for line in lines
    ]


def _median_rate(cells: Iterable[EndedCell]) -> float:
    rates = [each.end.rate for each in cells if each.end is not None]
    return _median(rate for rate in rates if math.isfinite(rate))


def _median(values: Iterable[float]) -> float:
    values = list(values)
    return median(values) if values else math.nan


def warmup_label(warmup: int | None) -> str:
    """Return a warm-up as text; None stands for the arm's own schedule."""
    if warmup is None:
        return OWN_SCHEDULE
    return f"warm-up {warmup}" if warmup else "no warm-up"
