"""Cells as processes of this machine: one thread each, as many as there are cores or GPUs."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess

import torch

from addnorm.comparison.cell import DiskFullError, run_cell
from addnorm.comparison.cell_result import LOG_SUFFIX, CellResult, sidecar_path
from addnorm.comparison.engines.base import Engine, Event, EventHandler
from addnorm.comparison.job import Job
from addnorm.core.errors import UserError
from addnorm.core.interrupts import StopFlag
from addnorm.train.device import count_cores

DISK_FULL_EXIT_CODE = 74
"""Exit code of a process that could not write."""
IMPORTED_LATE = ["torch._dynamo", "sacrebleu", "addnorm.comparison.tasks.table_training"]
"""What a training imports only when it is under way; imported once, for all cells. What is not
installed is left out."""
PAUSE_TIMEOUT_SECONDS = 60.0
"""Seconds that a cell has to save its state when it is asked to pause."""


@dataclass
class _RunningCell:
    """A cell and its process."""

    job: Job
    process: BaseProcess
    pipe: Connection
    slot: int
    last_message_time: float = field(default_factory=time.monotonic)
    is_hung: bool = False


class LocalEngine(Engine):
    """Processes forked from a server that has imported torch once; each dies with its cell."""

    def __init__(self, *, workers: int | None = None, timeout: float = 600.0) -> None:
        if workers is not None and workers < 1:
            raise UserError(f"workers cannot be {workers}; wanted 1 or more")
        if not timeout > 0:
            raise UserError(f"limit cannot be {timeout:g} seconds; wanted more than 0")
        self.gpus = torch.cuda.device_count()
        self._workers = workers or self.gpus or count_cores()
        self.timeout = timeout
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__, *IMPORTED_LATE])
        ensure_running()  # it imports while the data are prepared

    @property
    def workers(self) -> int:
        """Cells at a time."""
        return self._workers

    def run(self, jobs: Sequence[Job], on_event: EventHandler, stop_flag: StopFlag) -> None:
        """Run all jobs, as many at a time as there are workers."""
        waiting, running = list(jobs), dict[int, _RunningCell]()
        stopping = False
        try:
            while running or (waiting and not stop_flag.requested):
                while waiting and len(running) < self.workers and not stop_flag.requested:
                    slot = next(n for n in range(self.workers) if n not in running)
                    running[slot] = self._start(waiting.pop(0), slot)
                    on_event(Event(running[slot].job, "began"))
                if stop_flag.requested and not stopping:
                    stopping = True
                    for each in running.values():
                        each.process.terminate()
                self._listen(running, on_event, stopping)
        finally:
            for each in running.values():  # only if something was raised
                each.process.kill()
                each.process.join()

    def _start(self, job: Job, slot: int) -> _RunningCell:
        ours, theirs = self.context.Pipe(duplex=False)
        job.folder.mkdir(parents=True, exist_ok=True)
        gpu = slot % self.gpus if self.gpus else None
        process = self.context.Process(
            target=_run_in_process, args=(job, theirs, gpu), daemon=False
        )
        process.start()
        theirs.close()
        return _RunningCell(job, process, ours, slot)

    def _listen(
        self, running: dict[int, _RunningCell], on_event: EventHandler, stopping: bool
    ) -> None:
        """Wait for news of any cell, and pass it on."""
        handles = [each.pipe for each in running.values() if not each.pipe.closed]
        ends = [each.process.sentinel for each in running.values()]
        wait([*handles, *ends], timeout=1.0)
        for slot, each in list(running.items()):
            _forward_messages(each, on_event)
            if not each.process.is_alive():
                _forward_messages(each, on_event)
                each.process.join()
                del running[slot]
                _report_end(each, on_event, stopping)
            elif time.monotonic() - each.last_message_time > (
                PAUSE_TIMEOUT_SECONDS if stopping else self.timeout
            ):
                each.is_hung = True
                each.process.kill()


def _forward_messages(cell: _RunningCell, on_event: EventHandler) -> None:
    """Pass on what a cell says."""
    with contextlib.suppress(EOFError, OSError):
        while not cell.pipe.closed and cell.pipe.poll():
            step, loss = cell.pipe.recv()
            cell.last_message_time = time.monotonic()
            on_event(Event(cell.job, "stepped", step, loss))


def _report_end(cell: _RunningCell, on_event: EventHandler, stopping: bool) -> None:
    """What became of a process that is no more."""
    cell.pipe.close()
    code = cell.process.exitcode
    if code == DISK_FULL_EXIT_CODE:
        raise DiskFullError(
            f"no room for {cell.job.folder}: the disk is full or cannot be written; make room and "
            "give the same command again, nothing is lost"
        )
    end = CellResult.read(cell.job.folder)
    if end is not None:
        on_event(Event(cell.job, "ended", end.step, end.loss, end))
    elif stopping or (code == 0 and cell.job.pause_step is not None):
        on_event(Event(cell.job, "paused"))
    else:
        end = CellResult("crashed", _exit_reason(cell, code))
        end.save(cell.job.folder)
        on_event(Event(cell.job, "ended", end=end))


def _exit_reason(cell: _RunningCell, code: int | None) -> str:
    if cell.is_hung:
        return "hung: no sign of life within the limit"
    if code == 0:
        return "its process was asked to stop from outside (SIGTERM)"
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        more = "; out of memory, or killed by hand" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{more}"
    return f"its process ended with code {code}; see {sidecar_path(cell.job.folder, LOG_SUFFIX)}"


def _run_in_process(job: Job, pipe: Connection, gpu: int | None) -> None:
    """The process of one cell."""
    os.setpgrp()  # Ctrl-C at the terminal is for whoever leads; they tell us in good time
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible_device(gpu)
    torch.set_num_threads(1)
    with sidecar_path(job.folder, LOG_SUFFIX).open("a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    def tell(step: int, loss: float) -> None:
        try:
            pipe.send((step, loss))
        except OSError:  # nobody leads any more: pause, as if asked to
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        run_cell(job, tell)
    except DiskFullError:
        sys.exit(DISK_FULL_EXIT_CODE)


def _visible_device(gpu: int) -> str:
    """The GPU that a slot uses, of those that we were given."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return given.split(",")[gpu] if given else str(gpu)
