"""Cells in the process that calls: for tests, where a process for each would take seconds."""

from addnorm.comparison.cell import run_cell
from addnorm.comparison.engines.base import Engine, Event


class Here(Engine):
    """One cell after the other."""

    workers = 1

    def run(self, jobs, on_event, stop_flag):
        """Run all jobs."""
        for job in jobs:
            job.folder.mkdir(parents=True, exist_ok=True)
            end = run_cell(job, lambda step, loss: None)
            on_event(Event(job, "ended", end.step, end.loss, end))
