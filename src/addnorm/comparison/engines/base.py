"""Interface of engines, which run the jobs of a comparison."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from addnorm.comparison.cell_job import Job
from addnorm.comparison.cell_result import CellResult
from addnorm.core.errors import UserError
from addnorm.core.interrupts import StopFlag


@dataclass(frozen=True)
class Event:
    """Start, progress, pause or end of a cell, or that it waits in the queue of a cluster."""

    job: Job
    kind: str
    """waiting, began, stepped, paused (by an interruption or for halving) or ended."""
    step: int = 0
    loss: float = math.nan
    """Training loss of the last step."""
    end: CellResult | None = None
    """Result of the cell, if it ended."""
    reason: str = ""
    """Why a cell waits, in the words of the cluster."""


EventHandler = Callable[[Event], None]


class Engine(ABC):
    """A place where cells run.

    Args:
        workers: cells at the same time; None leaves the number to the engine
        timeout: seconds without progress before a cell is killed
    """

    stop_message = ""
    """What became of the cells after an interruption, for the user; empty if that is obvious."""

    def __init__(self, *, workers: int | None = None, timeout: float = 600.0) -> None:
        if workers is not None and workers < 1:
            raise UserError(f"workers: expected 1 or more, got {workers}")
        if not timeout > 0:
            raise UserError(f"timeout: expected more than 0 seconds, got {timeout:g}")
        self.timeout = timeout

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
