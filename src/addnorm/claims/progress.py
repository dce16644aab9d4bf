"""How far a claim is that runs in this process: a line now and then, with the time left."""

import time
from collections.abc import Callable

from addnorm.train.train_state import Progress, Watcher

SECONDS = 10.0
"""Between two lines."""


class Pace(Watcher):
    """Counts what is done, and says so; a training may be followed step by step."""

    def __init__(self, said: Callable[[str], None], *, total: int, unit: str) -> None:
        self.tell, self.total, self.unit = said, total, unit
        self.begun = self.last = time.monotonic()
        self.first: int | None = None
        self.before = 0

    def came(self, done: int) -> None:
        """So many are done, of all."""
        now = time.monotonic()
        if self.first is None:  # what an earlier sitting did took no time in this one
            self.first, self.begun = done, now
        if now - self.last < SECONDS or done <= self.first:
            return
        self.last = now
        left = (now - self.begun) * (self.total - done) / (done - self.first)
        self.tell(f"{done:,} of {self.total:,} {self.unit}, {left:,.0f} s left")

    def starting(self, before: int) -> None:
        """A training begins; before: steps of those that are done."""
        self.before = before

    def stepped(self, progress: Progress, loss: float) -> None:
        """A step of a training."""
        self.came(self.before + progress.step)
