"""A job, everything a process needs to train one cell, and the heartbeat of the training."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch
from typing_extensions import Self

from addnorm.comparison.shared_data import SharedData
from addnorm.core.rows import Row
from addnorm.plugins import Plugin
from addnorm.train.callbacks import TrainCallback
from addnorm.train.train_state import TrainState

HEARTBEAT_SECONDS = 0.2
"""Minimum time between two heartbeats."""

StepCallback = Callable[[int, float], None]
"""Called with the step and its training loss."""


class CellRecipe(Protocol):
    """Settings that determine a cell, as plain data; each task has its own pydantic model."""

    @property
    def task(self) -> str:
        """A text task (`addnorm list tasks`), or table."""

    @property
    def data(self) -> str:
        """Corpus folder, or the file of a table."""

    @property
    def seed(self) -> int:
        """Seed of all random draws."""

    def to_flat_dict(self) -> dict[str, Any]:
        """Return all keys with their values."""

    def to_yaml(self) -> str:
        """Return all keys as YAML."""

    def save(self, path: Path) -> None:
        """Write the keys to a YAML file."""

    def model_copy(self, *, update: dict[str, Any]) -> Self:
        """Return a copy with some keys changed."""


@dataclass(frozen=True)
class Job:
    """One cell to train; picklable, so that it can run in another process or on another node."""

    name: str
    recipe: CellRecipe
    folder: Path
    score: Path | None
    """Folder of the held-out examples to score on; None disables scoring."""
    pause_step: int | None = None
    """Step at which the cell pauses for halving; None trains to the end."""
    shared_data: SharedData | None = None
    """Facts that the data must still agree with when the cell starts; None skips the check."""
    plugins: tuple[Plugin, ...] = ()
    """Plugins that the process of the cell loads first."""


class Heartbeat(TrainCallback):
    """Training callback that reports progress at a limited rate and measures throughput."""

    def __init__(self, on_step: StepCallback) -> None:
        self.report_step, self.last_report_time = on_step, 0.0
        self.rates: list[float] = []
        self.step, self.loss = 0, math.nan
        self.last_sample = (process_seconds(), 0)

    def on_train_start(self, state: TrainState, summary: dict[str, Any]) -> None:
        self.last_sample, self.step = (process_seconds(), state.tokens), state.step
        self.report_step(state.step, math.nan)

    def on_step_end(self, state: TrainState, loss: float) -> None:
        self.update(state.step, state.tokens, loss)

    def update(self, step: int, count: int, loss: float) -> None:
        """Record a step and report it.

        Args:
            step: steps done
            count: tokens (of a table: rows) processed so far
            loss: training loss of the step
        """
        now, (last_time, last_count) = process_seconds(), self.last_sample
        self.rates.append((count - last_count) / max(now - last_time, 1e-9))
        self.last_sample, self.step, self.loss = (now, count), step, loss
        self.tick(0, 0)

    def on_rows(self, rows: list[Row]) -> None:
        self.tick(0, 0)

    def tick(self, count: int, total: int) -> None:
        """Report the last step again, to show that the process is alive between two steps."""
        if time.monotonic() - self.last_report_time >= HEARTBEAT_SECONDS:
            self.report()

    def report(self) -> None:
        """Report the last step now; the last report of a cell that pauses must not be left out."""
        self.last_report_time = time.monotonic()
        self.report_step(self.step, self.loss)

    @property
    def rate(self) -> float:
        """Tokens (or rows) per second: the median over steps, which ignores validations."""
        return median(self.rates) if self.rates else math.nan


def process_seconds() -> float:
    """Return the CPU time of this process; on a GPU, the wall time."""
    return time.perf_counter() if is_using_gpu() else time.process_time()


def is_using_gpu() -> bool:
    """Return whether this process has initialized CUDA."""
    return bool(torch.cuda.is_initialized())
