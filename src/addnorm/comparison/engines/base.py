"""Interface of engines, which run the jobs of a comparison."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.job import Job
from addnorm.core.interrupts import StopFlag


@dataclass(frozen=True)
class Event:
    """Start, progress, pause or end of a cell."""

    job: Job
    kind: str
    """began, stepped, paused (by an interruption or for halving) or ended."""
    step: int = 0
    loss: float = math.nan
    """Training loss of the last step."""
    end: CellResult | None = None
    """Result of the cell, if it ended."""


EventHandler = Callable[[Event], None]


class Engine(ABC):
    """A place where cells run."""

    @abstractmethod
    def run(self, jobs: Sequence[Job], on_event: EventHandler, stop_flag: StopFlag) -> None:
        """Run all jobs and return when each has ended or paused.

        A cell that crashes, hangs or is killed ends with a result of ending `crashed`.

        Args:
            jobs: cells to train, in this order
            on_event: receives the events of all cells
            stop_flag: once it is set, running cells save a checkpoint and pause

        Raises:
            DiskFullError: a problem that stops all cells
        """

    @property
    @abstractmethod
    def workers(self) -> int:
        """Number of cells that run at the same time."""
