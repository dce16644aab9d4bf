"""Progress messages of claims that run in this process, with the remaining time."""

import time
from collections.abc import Callable

from addnorm.train.callbacks import TrainCallback
from addnorm.train.train_state import TrainState

REPORT_INTERVAL_SECONDS = 10.0
"""Minimum time between two messages."""


class ProgressTimer(TrainCallback):
    """Training callback that reports how much of a claim is done.

    Args:
        on_message: receives a line of text every ten seconds
        total: number of units of the whole claim
        unit: name of the units, such as seeds or steps
    """

    def __init__(self, on_message: Callable[[str], None], *, total: int, unit: str) -> None:
        self.report, self.total, self.unit = on_message, total, unit
        self.start_time = self.last_report_time = time.monotonic()
        self.initial_count: int | None = None
        self.step_offset = 0

    def update(self, done: int) -> None:
        """Report that `done` units are finished."""
        now = time.monotonic()
        if self.initial_count is None:  # work of an earlier session took no time in this one
            self.initial_count, self.start_time = done, now
        if now - self.last_report_time < REPORT_INTERVAL_SECONDS or done <= self.initial_count:
            return
        self.last_report_time = now
        remaining = (now - self.start_time) * (self.total - done) / (done - self.initial_count)
        self.report(f"{done:,} of {self.total:,} {self.unit}, {remaining:,.0f} s left")

    def start_training(self, step_offset: int) -> None:
        """Start to count a training run, after `step_offset` steps of earlier runs."""
        self.step_offset = step_offset

    def on_step_end(self, state: TrainState, loss: float) -> None:
        self.update(self.step_offset + state.step)
