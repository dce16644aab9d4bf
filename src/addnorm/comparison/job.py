"""The job of training one cell, and its signs of life."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol, Self

import torch

from addnorm.core.rows import Row
from addnorm.train.train_state import Progress, Watcher

PULSE = 0.2
"""Seconds between two signs of life."""

Tell = Callable[[int, float], None]
"""Called with the step and its loss."""


class CellRecipe(Protocol):
    """All that decides a cell, in plain data; each task has its own, as a pydantic model."""

    @property
    def task(self) -> str:
        """What is learnt."""

    @property
    def data(self) -> str:
        """The folder of the data."""

    @property
    def seed(self) -> int:
        """All chance derives from it."""

    def flat(self) -> dict[str, Any]:
        """Every key with its value."""

    def yaml(self) -> str:
        """The same as YAML."""

    def save(self, path: Path) -> None:
        """Write it."""

    def model_copy(self, *, update: dict[str, Any]) -> Self:
        """With some keys changed."""


@dataclass(frozen=True)
class Job:
    """All that is needed to train one cell, wherever that is."""

    name: str
    recipe: CellRecipe
    folder: Path
    score: Path | None
    """Held-out records that are answered at the end."""
    until: int | None = None
    """Step after which it pauses, to be judged before it goes on; None for the end."""


class Pulse(Watcher):
    """Signs of life, not too many; and the speed, step by step."""

    def __init__(self, tell: Tell) -> None:
        self.tell, self.last = tell, 0.0
        self.rates: list[float] = []
        self.step, self.loss = 0, math.nan
        self.mark = (spent(), 0)

    def began(self, progress: Progress, facts: dict[str, Any]) -> None:
        """From where it goes on."""
        self.mark, self.step = (spent(), progress.tokens), progress.step
        self.tell(progress.step, math.nan)

    def stepped(self, progress: Progress, loss: float) -> None:
        """After an update."""
        self.came(progress.step, progress.tokens, loss)

    def came(self, step: int, count: int, loss: float) -> None:
        """So far, with so many tokens (or rows) behind it."""
        now, (before, counted) = spent(), self.mark
        self.rates.append((count - counted) / max(now - before, 1e-9))
        self.mark, self.step, self.loss = (now, count), step, loss
        self.tick(0, 0)

    def measured(self, rows: list[Row]) -> None:
        """After a validation, say."""
        self.tick(0, 0)

    def tick(self, count: int, total: int) -> None:
        """Something goes on that is no step."""
        if time.monotonic() - self.last >= PULSE:
            self.last = time.monotonic()
            self.tell(self.step, self.loss)

    @property
    def rate(self) -> float:
        """Tokens (or rows) a second: the median over steps, so that validations do not count."""
        return median(self.rates) if self.rates else math.nan


def spent() -> float:
    """Seconds that this process worked, whoever else was on the machine; on a GPU, that passed."""
    return time.perf_counter() if on_gpu() else time.process_time()


def on_gpu() -> bool:
    """Whether this process has begun to use one."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
