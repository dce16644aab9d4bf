"""One cell, trained and measured in the process that calls: what every engine runs."""

import resource
import shutil
import sys
import time
import traceback
from dataclasses import replace
from errno import EDQUOT, ENOSPC, EROFS

import torch

from addnorm.comparison.cell_result import ERROR, Finished, beside
from addnorm.comparison.job import PULSE, Job, Pulse, Tell, on_gpu
from addnorm.comparison.tasks import task_of
from addnorm.core.errors import UserError
from addnorm.train import run_folder as files

PATIENCE = 60.0
"""Seconds that a cell waits for another process that works on it."""


class NoRoom(UserError):
    """The disk is full: no cell can go on, and none of them is to blame."""


def work(job: Job, tell: Tell) -> Finished | None:
    """Train the cell, or go on with it; None if it was interrupted or paused.

    Whatever goes wrong inside is a result, with the reason; only a full disk is everybody's. A
    cell of a leader who was killed may still be at work: it is waited for, and its end is taken.
    """
    until = time.monotonic() + PATIENCE
    while True:
        with files.alone(job.folder.with_name(f".{job.folder.name}.lock")) as ours:
            if (end := Finished.read(job.folder)) is not None:
                return end
            if ours:
                return _worked(job, tell)
        if time.monotonic() > until:
            return None
        time.sleep(PULSE)


def _worked(job: Job, tell: Tell) -> Finished | None:
    at_rest = _peak()
    try:
        try:
            finished = task_of(job.recipe.task).finished(job, Pulse(tell))
        except Exception as problem:
            if _no_room(problem):
                raise
            beside(job.folder, ERROR).write_text(traceback.format_exc(), encoding="utf-8")
            finished = Finished("crashed", _reason(problem))
        if finished is None:
            return None
        finished = replace(finished, memory=_peak() - (0 if on_gpu() else at_rest))
        finished.save(job.folder)
    except Exception as problem:
        if _no_room(problem):
            raise NoRoom(str(problem)) from None
        raise
    if finished.ending != "crashed":  # whoever wants the weights trains this one cell again
        shutil.rmtree(job.folder / files.CHECKPOINTS, ignore_errors=True)
    return finished


def _peak() -> int:
    """The most memory that this process had so far, in bytes; on a GPU, of the GPU."""
    if on_gpu():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _no_room(problem: BaseException) -> bool:
    """Whether it was the disk, at any remove."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (ENOSPC, EDQUOT, EROFS):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _reason(problem: Exception) -> str:
    memory = isinstance(problem, MemoryError | torch.OutOfMemoryError)
    if memory or "allocate memory" in str(problem):
        return "out of memory"
    words = " ".join(str(problem).split())
    return words if isinstance(problem, UserError) else f"{type(problem).__name__}: {words}"
