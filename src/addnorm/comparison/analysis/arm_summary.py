"""One arm at one depth in numbers, and how tables and sentences show it."""

from collections.abc import Sequence
from dataclasses import dataclass

from addnorm.comparison.grid import Arm
from addnorm.comparison.outcomes import VALIDATION_LOSS, Objective
from addnorm.comparison.statistics import Estimate

UNKNOWN_STATES = {"crashed", "cut", "waiting"}
"""States that carry no information about training."""
OWN_SCHEDULE = "own schedule"
MAX_NAMES = 8


def warmup_label(warmup: int | None) -> str:
    """Return a warm-up as text; None stands for the arm's own schedule."""
    if warmup is None:
        return OWN_SCHEDULE
    return f"warm-up {warmup}" if warmup else "no warm-up"


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
        return f"lr {self.lr:g}, {warmup_label(self.warmup)}"


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
    objective: Objective = VALIDATION_LOSS
    """What cells are judged by; `loss` and `behind` are losses, `value` and `gap` are not."""

    @property
    def value(self) -> Estimate | None:
        """Mean over the seeds of what cells are judged by; `loss` with the sign of the metric."""
        return self.objective.to_estimate(self.loss) if self.loss else None

    @property
    def gap(self) -> Estimate | None:
        """Value minus the value of the best arm; `behind` with the sign of the metric."""
        return self.objective.to_estimate(self.behind) if self.behind else None

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
        states = ", ".join(f"{count} {state}" for state, count in self.states.items() if count)
        best = f"; best at {self.format_best()}" if self.best else ""
        loss = f", {self.objective.column} {self.value.format()}" if self.value else ""
        behind = f", {self.behind.format()} behind the best" if self.behind else ""
        return f"{self.arm.name}, depth {self.depth}: {states}{best}{loss}{behind}"


def join_names(names: Sequence[str]) -> str:
    """Join names to an enumeration; long lists are shortened.

    >>> join_names(["a", "b", "c"]), join_names(list("abcdefghij"))
    ('a, b and c', 'a, b, c, d, e, f, g and 3 more')
    """
    shown = list(names) if len(names) <= MAX_NAMES else list(names[: MAX_NAMES - 1])
    shown += [f"{len(names) - len(shown)} more"] if len(shown) < len(names) else []
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
