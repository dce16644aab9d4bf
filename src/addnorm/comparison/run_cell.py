"""Training of one cell in the current process; every engine calls `run_cell`."""

import os
import resource
import shutil
import sys
import time
import traceback
from dataclasses import replace
from errno import EDQUOT, ENOSPC, EROFS

import torch

from addnorm.comparison.cell_job import (
    HEARTBEAT_SECONDS,
    Heartbeat,
    Job,
    StepCallback,
    is_using_gpu,
)
from addnorm.comparison.cell_result import ERROR_SUFFIX, CellResult, sidecar_path
from addnorm.comparison.tasks import get_task
from addnorm.comparison.tasks.base import DistributedTask
from addnorm.core.errors import UserError
from addnorm.core.locks import try_lock
from addnorm.train.run_folder import CHECKPOINTS, ROWS

LOCK_TIMEOUT_SECONDS = 60.0
"""Seconds to wait for another process that trains the same cell."""
DISK_FULL_EXIT_CODE, PAUSED_EXIT_CODE = 74, 75
"""Exit codes of the process of a cell: the disk is full or read-only; the cell was interrupted."""


class DiskFullError(UserError):
    """The disk is full or read-only, which stops all cells of a comparison."""


def run_cell(job: Job, on_step: StepCallback) -> CellResult | None:
    """Train a cell, resuming from its last checkpoint if there is one.

    An exception inside the training becomes a result with ending `crashed`. A process orphaned by
    a killed comparison may still train the cell; the function then waits for that process and
    returns its result. Under `torchrun` every process makes the same call; the first one writes
    the files.

    Args:
        job: the cell to train
        on_step: called with the step and its loss, a few times per second

    Returns:
        The result, or None if the training was interrupted or paused.

    Raises:
        DiskFullError: the disk is full or read-only
    """
    if not is_main_process():
        if CellResult.read(job.folder) is None:
            _load_plugins(job)
            task = get_task(job.recipe.task)
            assert isinstance(task, DistributedTask)  # engines check it
            task.join_training(job)
        return None
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        with try_lock(job.folder.with_name(f".{job.folder.name}.lock")) as acquired:
            if (result := CellResult.read(job.folder)) is not None:
                return result
            if acquired:
                return _train_cell(job, on_step)
        if time.monotonic() > deadline:
            return None
        time.sleep(HEARTBEAT_SECONDS)


def _train_cell(job: Job, on_step: StepCallback) -> CellResult | None:
    idle_memory, heartbeat = _peak_memory_bytes(), Heartbeat(on_step)
    try:
        try:
            _load_plugins(job)
            result = get_task(job.recipe.task).train_and_score(job, heartbeat)
        except Exception as error:
            if _is_disk_full(error):
                raise
            sidecar_path(job.folder, ERROR_SUFFIX).write_text(
                traceback.format_exc(), encoding="utf-8"
            )
            result = CellResult("crashed", _format_reason(error))
        if result is None:
            heartbeat.report()
            return None
        idle_memory = 0 if is_using_gpu() else idle_memory
        result = replace(result, memory=_peak_memory_bytes() - idle_memory)
        result.save(job.folder, rows=None if result.ending == "crashed" else ROWS)
    except Exception as error:
        if _is_disk_full(error):
            raise DiskFullError(str(error)) from None
        raise
    if result.ending != "crashed":  # weights are not kept; the report shows how to retrain a cell
        shutil.rmtree(job.folder / CHECKPOINTS, ignore_errors=True)
    return result


def _load_plugins(job: Job) -> None:
    for plugin in job.plugins:
        plugin.load()


def is_main_process() -> bool:
    """Return whether this process writes the files of the cell; under `torchrun` only one does."""
    return os.environ.get("RANK", "0") == "0"


def _peak_memory_bytes() -> int:
    """Return the peak memory of this process so far: of the GPU if it uses one, else of the CPU."""
    if is_using_gpu():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _is_disk_full(error: BaseException) -> bool:
    """Return whether the error or any error in its chain of causes is a full or read-only disk."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (ENOSPC, EDQUOT, EROFS):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _format_reason(error: Exception) -> str:
    is_memory_error = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if is_memory_error or "allocate memory" in str(error):
        return "out of memory"
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
