"""How far a claim is that runs in this process: a line now and then, with the time left."""

import time
from collections.abc import Callable

from addnorm.train.callbacks import TrainCallback
from addnorm.train.train_state import TrainState

REPORT_INTERVAL_SECONDS = 10.0
"""Between two lines."""


class ProgressTimer(TrainCallback):
    """Counts what is done, and says so; a training may be followed step by step."""

    def __init__(self, on_message: Callable[[str], None], *, total: int, unit: str) -> None:
        self.report, self.total, self.unit = on_message, total, unit
        self.start_time = self.last_report_time = time.monotonic()
        self.initial_count: int | None = None
        self.step_offset = 0

    def update(self, done: int) -> None:
        """So many are done, of all."""
        now = time.monotonic()
        if self.initial_count is None:  # what an earlier sitting did took no time in this one
            self.initial_count, self.start_time = done, now
        if now - self.last_report_time < REPORT_INTERVAL_SECONDS or done <= self.initial_count:
            return
        self.last_report_time = now
        left = (now - self.start_time) * (self.total - done) / (done - self.initial_count)
        self.report(f"{done:,} of {self.total:,} {self.unit}, {left:,.0f} s left")

    def start_training(self, step_offset: int) -> None:
        """A training begins; before: steps of those that are done."""
        self.step_offset = step_offset

    def on_step_end(self, state: TrainState, loss: float) -> None:
        """A step of a training."""
        self.update(self.step_offset + state.step)
