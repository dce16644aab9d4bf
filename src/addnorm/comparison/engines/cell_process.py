"""A process that trains one cell: `python -m addnorm.comparison.engines.cell_process`.

Jobs of SLURM and cells of several processes (`torchrun`) run it. It reads the cell from a file of
jobs and writes its progress to a file, because the process that waits for it may have ended, or run
on another machine.
"""

import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from addnorm.comparison.engines.job_files import Progress, read_job
from addnorm.comparison.run_cell import (
    DISK_FULL_EXIT_CODE,
    PAUSED_EXIT_CODE,
    DiskFullError,
    is_main_process,
    run_cell,
)
from addnorm.core.interrupts import ignore_repeated_signals
from addnorm.train.distributed import exit_if_distributed

PROGRESS_INTERVAL_SECONDS = 1.0
"""Minimum time between two writes of the progress."""


def main(arguments: Sequence[str]) -> int:
    """Train a cell.

    Args:
        arguments: file of the jobs, its SHA-256, index of the cell, file for the progress

    Returns:
        0 if the cell has a result, 75 if it was interrupted, 74 if the disk is full.
    """
    jobs_file, checksum, index, progress_file = arguments
    job = read_job(Path(jobs_file), checksum, int(index))
    # SLURM and torchrun both send SIGTERM; the second must not prevent saving.
    ignore_repeated_signals()
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS") or 1)))
    progress, last_write = None, -math.inf

    def write_progress(step: int, loss: float) -> None:
        nonlocal progress, last_write
        progress = Progress(step, loss, time.time())
        if is_main_process() and time.monotonic() - last_write >= PROGRESS_INTERVAL_SECONDS:
            last_write = time.monotonic()
            progress.write(Path(progress_file))

    job.folder.mkdir(parents=True, exist_ok=True)
    try:
        result = run_cell(job, write_progress)
        if is_main_process() and progress is not None:
            progress.write(Path(progress_file))  # the last step tells whether the cell has paused
    except DiskFullError as error:
        print(error, file=sys.stderr)
        return DISK_FULL_EXIT_CODE
    return PAUSED_EXIT_CODE if result is None and is_main_process() else 0


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    exit_if_distributed(exit_code)
    sys.exit(exit_code)
