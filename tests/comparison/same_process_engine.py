"""An engine that runs cells in the calling process, for tests: starting processes takes seconds."""

from addnorm.comparison.engines.base import Engine, Event
from addnorm.comparison.run_cell import run_cell


class SameProcessEngine(Engine):
    """Engine that runs the jobs one after the other in this process."""

    workers = 1

    def run(self, jobs, on_event, stop_flag):
        for job in jobs:
            job.folder.mkdir(parents=True, exist_ok=True)
            end = run_cell(job, lambda step, loss: None)
            if end is None:  # interrupted, or paused for halving
                on_event(Event(job, "paused"))
            else:
                on_event(Event(job, "ended", end.step, end.loss, end))
