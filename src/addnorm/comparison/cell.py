"""One cell, trained and measured in the process that calls: what every engine runs."""

import resource
import shutil
import sys
import time
import traceback
from dataclasses import replace
from errno import EDQUOT, ENOSPC, EROFS

import torch

from addnorm.comparison.cell_result import ERROR_SUFFIX, CellResult, sidecar_path
from addnorm.comparison.job import HEARTBEAT_SECONDS, Heartbeat, Job, StepCallback, is_using_gpu
from addnorm.comparison.tasks import get_task
from addnorm.core.errors import UserError
from addnorm.core.files import try_lock
from addnorm.train import run_folder as files

LOCK_TIMEOUT_SECONDS = 60.0
"""Seconds that a cell waits for another process that works on it."""


class DiskFullError(UserError):
    """The disk is full: no cell can go on, and none of them is to blame."""


def run_cell(job: Job, on_step: StepCallback) -> CellResult | None:
    """Train the cell, or go on with it; None if it was interrupted or paused.

    Whatever goes wrong inside is a result, with the reason; only a full disk is everybody's. A
    cell of a leader who was killed may still be at work: it is waited for, and its end is taken.
    """
    until = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        with try_lock(job.folder.with_name(f".{job.folder.name}.lock")) as ours:
            if (end := CellResult.read(job.folder)) is not None:
                return end
            if ours:
                return _train_cell(job, on_step)
        if time.monotonic() > until:
            return None
        time.sleep(HEARTBEAT_SECONDS)


def _train_cell(job: Job, on_step: StepCallback) -> CellResult | None:
    at_rest = _peak_memory_bytes()
    try:
        try:
            finished = get_task(job.recipe.task).train_and_score(job, Heartbeat(on_step))
        except Exception as problem:
            if _is_disk_full(problem):
                raise
            sidecar_path(job.folder, ERROR_SUFFIX).write_text(
                traceback.format_exc(), encoding="utf-8"
            )
            finished = CellResult("crashed", _format_reason(problem))
        if finished is None:
            return None
        finished = replace(
            finished, memory=_peak_memory_bytes() - (0 if is_using_gpu() else at_rest)
        )
        finished.save(job.folder)
    except Exception as problem:
        if _is_disk_full(problem):
            raise DiskFullError(str(problem)) from None
        raise
    if finished.ending != "crashed":  # whoever wants the weights trains this one cell again
        shutil.rmtree(job.folder / files.CHECKPOINTS, ignore_errors=True)
    return finished


def _peak_memory_bytes() -> int:
    """The most memory that this process had so far, in bytes; on a GPU, of the GPU."""
    if is_using_gpu():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _is_disk_full(error: BaseException) -> bool:
    """Whether it was the disk, at any remove."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (ENOSPC, EDQUOT, EROFS):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _format_reason(error: Exception) -> str:
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if memory or "allocate memory" in str(error):
        return "out of memory"
    words = " ".join(str(error).split())
    return words if isinstance(error, UserError) else f"{type(error).__name__}: {words}"
