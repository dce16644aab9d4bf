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
from addnorm.train.callbacks import TrainCallback
from addnorm.train.train_state import TrainState

HEARTBEAT_SECONDS = 0.2
"""Seconds between two signs of life."""

StepCallback = Callable[[int, float], None]
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

    def to_flat_dict(self) -> dict[str, Any]:
        """Every key with its value."""

    def to_yaml(self) -> str:
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
    pause_step: int | None = None
    """Step after which it pauses, to be judged before it goes on; None for the end."""


class Heartbeat(TrainCallback):
    """Signs of life, not too many; and the speed, step by step."""

    def __init__(self, on_step: StepCallback) -> None:
        self.report_step, self.last_report_time = on_step, 0.0
        self.rates: list[float] = []
        self.step, self.loss = 0, math.nan
        self.last_sample = (process_seconds(), 0)

    def on_train_start(self, state: TrainState, summary: dict[str, Any]) -> None:
        """From where it goes on."""
        self.last_sample, self.step = (process_seconds(), state.tokens), state.step
        self.report_step(state.step, math.nan)

    def on_step_end(self, state: TrainState, loss: float) -> None:
        """After an update."""
        self.update(state.step, state.tokens, loss)

    def update(self, step: int, count: int, loss: float) -> None:
        """So far, with so many tokens (or rows) behind it."""
        now, (before, counted) = process_seconds(), self.last_sample
        self.rates.append((count - counted) / max(now - before, 1e-9))
        self.last_sample, self.step, self.loss = (now, count), step, loss
        self.tick(0, 0)

    def on_rows(self, rows: list[Row]) -> None:
        """After a validation, say."""
        self.tick(0, 0)

    def tick(self, count: int, total: int) -> None:
        """Something goes on that is no step."""
        if time.monotonic() - self.last_report_time >= HEARTBEAT_SECONDS:
            self.last_report_time = time.monotonic()
            self.report_step(self.step, self.loss)

    @property
    def rate(self) -> float:
        """Tokens (or rows) a second: the median over steps, so that validations do not count."""
        return median(self.rates) if self.rates else math.nan


def process_seconds() -> float:
    """Seconds that this process worked, whoever else was on the machine; on a GPU, that passed."""
    return time.perf_counter() if is_using_gpu() else time.process_time()


def is_using_gpu() -> bool:
    """Whether this process has begun to use one."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
