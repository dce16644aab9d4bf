"""Cells of several processes, one for each GPU, started by `torchrun`."""

import ctypes
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from addnorm.comparison.cell_job import HEARTBEAT_SECONDS, Job, StepCallback
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.engines.job_files import Progress, write_jobs
from addnorm.comparison.run_cell import DISK_FULL_EXIT_CODE, DiskFullError
from addnorm.comparison.tasks import get_task
from addnorm.comparison.tasks.base import DistributedTask
from addnorm.core.errors import UserError
from addnorm.core.interrupts import graceful_shutdown

CELL_MODULE = "addnorm.comparison.engines.cell_process"
PR_SET_PDEATHSIG = 1
"""Number of the operation of prctl(2)."""


def make_cell_command(processes: int, python: str = sys.executable) -> list[str]:
    """Return the command that trains a cell, without the arguments of `cell_process`."""
    if processes > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        return [python, *torchrun, "-m", CELL_MODULE]
    return [python, "-m", CELL_MODULE]


def check_processes(job: Job, processes: int) -> None:
    """Raise `UserError` if several processes cannot train a cell of this task."""
    if processes > 1 and not isinstance(get_task(job.recipe.task), DistributedTask):
        raise UserError(
            f"gpus_per_cell: expected 1 for task {job.recipe.task}, which trains in one process, "
            f"got {processes}"
        )


def run_cell_processes(job: Job, processes: int, on_step: StepCallback) -> CellResult | None:
    """Train a cell in several processes; the counterpart of `run_cell`.

    Args:
        job: the cell to train
        processes: number of processes, one for each visible GPU; without GPUs they use CPUs
        on_step: called with the step and its loss

    Returns:
        The result, or None if the training was interrupted or paused.

    Raises:
        DiskFullError: the disk is full or read-only
    """
    with TemporaryDirectory() as name, graceful_shutdown() as stop_flag:
        jobs_file, progress_file = Path(name) / "jobs.pickle", Path(name) / "progress"
        arguments = [str(jobs_file), write_jobs(jobs_file, [job]), "0", str(progress_file)]
        process = subprocess.Popen(
            [*make_cell_command(processes), *arguments], preexec_fn=_die_with_parent
        )
        is_stopping, progress = False, None
        while process.poll() is None:
            if stop_flag.requested and not is_stopping:
                is_stopping = True
                process.terminate()
            latest = Progress.read(progress_file)
            if latest is not None and latest != progress:
                progress = latest
                on_step(latest.step, latest.loss)
            time.sleep(HEARTBEAT_SECONDS)
    result = CellResult.read(job.folder)
    if result is None and process.returncode == DISK_FULL_EXIT_CODE:
        raise DiskFullError("the disk is full or read-only")
    is_paused = is_stopping or (
        job.pause_step is not None and progress is not None and progress.step >= job.pause_step
    )
    if result is None and process.returncode and not is_paused:
        result = CellResult(
            "crashed", f"a process of the cell failed; torchrun exited with {process.returncode}"
        )
        result.save(job.folder)
    return result


def _die_with_parent() -> None:
    """Ask Linux to send SIGTERM when the parent dies; elsewhere, do nothing."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
