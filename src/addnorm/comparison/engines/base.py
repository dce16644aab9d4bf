"""What every engine does: run jobs, tell how they go, stop when asked, and never lose a result."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.job import Job
from addnorm.core.interrupts import StopFlag


@dataclass(frozen=True)
class Event:
    """Something happened to a cell."""

    job: Job
    kind: str
    """began, stepped, paused (interrupted, or at a rung of halving) or ended."""
    step: int = 0
    loss: float = math.nan
    """Of the last step, in training."""
    end: CellResult | None = None
    """How it ended."""


EventHandler = Callable[[Event], None]


class Engine(ABC):
    """A place where cells run."""

    @abstractmethod
    def run(self, jobs: Sequence[Job], on_event: EventHandler, stop_flag: StopFlag) -> None:
        """Run all jobs; returns when each has ended or paused.

        bell: rung by whoever wants an end. Cells then save their state and pause. Whatever happens
        to a cell is told as its end; what concerns all of them, as a full disk does, is raised.
        """

    @property
    @abstractmethod
    def workers(self) -> int:
        """Cells at a time."""
