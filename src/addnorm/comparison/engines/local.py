"""Local engine: one single-threaded process per cell, as many as there are cores or GPUs.

A cell with several GPUs has a process for each of them; see `torchrun.py`.

The processes are forked from a server that imports torch once. Each sends (step, loss) messages
through a pipe; the parent kills a process that stays silent for too long. The result of a cell is a
file, so it survives the death of either side.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from addnorm.comparison.cell_job import Job
from addnorm.comparison.cell_result import LOG_SUFFIX, CellResult, sidecar_path
from addnorm.comparison.engines.base import Engine, Event, EventHandler
from addnorm.comparison.engines.cell_options import CellOption
from addnorm.comparison.engines.torchrun import check_processes, run_cell_processes
from addnorm.comparison.run_cell import DISK_FULL_EXIT_CODE, DiskFullError, run_cell
from addnorm.core.errors import UserError
from addnorm.core.interrupts import StopFlag, block_signals, unblock_signals
from addnorm.train.device import count_cores

IMPORTED_LATE = ["torch._dynamo", "sacrebleu", "addnorm.comparison.tasks.table_training"]
"""Modules that cells import lazily; the fork server imports those that are installed once."""
PAUSE_TIMEOUT_SECONDS = 60.0
"""Seconds a cell may take to save a checkpoint and pause before it is killed."""


@dataclass
class _RunningCell:
    job: Job
    process: BaseProcess
    pipe: Connection
    gpus: tuple[int, ...]
    last_message_time: float = field(default_factory=time.monotonic)
    is_hung: bool = False


class LocalEngine(Engine):
    """Engine that runs every cell in a process of this machine, or in one for each of its GPUs."""

    def __init__(
        self,
        *,
        workers: int | None = None,
        timeout: float = 600.0,
        gpus_per_cell: int | str | None = None,
    ) -> None:
        super().__init__(workers=workers, timeout=timeout)
        self.gpus = torch.cuda.device_count()
        default = min(1, self.gpus) if gpus_per_cell is None else gpus_per_cell
        self.gpus_per_cell = CellOption.parse("gpus_per_cell", default)
        self._workers = workers or self.gpus or count_cores()
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__, *IMPORTED_LATE])
        _start_server()  # it imports while the caller prepares the data

    @property
    def workers(self) -> int:
        return self._workers

    def run(self, jobs: Sequence[Job], on_event: EventHandler, stop_flag: StopFlag) -> None:
        for job in jobs:
            self._count_gpus(job)
        waiting, running = list(jobs), list[_RunningCell]()
        stopping = False
        try:
            while running or (waiting and not stop_flag.requested):
                while waiting and len(running) < self.workers and not stop_flag.requested:
                    gpus = self._find_gpus(self._count_gpus(waiting[0]), running)
                    if gpus is None:
                        break
                    running.append(self._start(waiting.pop(0), gpus))
                    on_event(Event(running[-1].job, "began"))
                if stop_flag.requested and not stopping:
                    stopping = True
                    for each in running:
                        each.process.terminate()
                self._listen(running, on_event, stopping)
        finally:
            for each in running:  # empty unless an exception was raised
                each.process.kill()
                each.process.join()

    def _count_gpus(self, job: Job) -> int:
        """Return the number of GPUs of a cell, checked."""
        count = self.gpus_per_cell.count_for(job.recipe.to_flat_dict())
        check_processes(job, count)
        if count > self.gpus:
            raise UserError(
                f"gpus_per_cell: expected at most {self.gpus}, the GPUs of this machine, got "
                f"{count}"
            )
        return count

    def _find_gpus(self, count: int, running: list[_RunningCell]) -> tuple[int, ...] | None:
        """Return the least used GPUs; None if a cell with several of them has to wait."""
        uses = Counter(gpu for each in running for gpu in each.gpus)
        gpus = tuple(sorted(range(self.gpus), key=lambda gpu: uses[gpu])[:count])
        return None if count > 1 and any(uses[gpu] for gpu in gpus) else gpus

    def _start(self, job: Job, gpus: tuple[int, ...]) -> _RunningCell:
        receiver, sender = self.context.Pipe(duplex=False)
        job.folder.mkdir(parents=True, exist_ok=True)
        process = self.context.Process(
            target=_run_in_process, args=(job, sender, gpus), daemon=False
        )
        _start_server()  # again, if it was killed
        with _hide_missing_script():
            process.start()
        sender.close()
        return _RunningCell(job, process, receiver, gpus)

    def _listen(self, running: list[_RunningCell], on_event: EventHandler, stopping: bool) -> None:
        """Wait up to a second for messages, forward them, and reap finished or hung processes."""
        pipes = [each.pipe for each in running if not each.pipe.closed]
        sentinels = [each.process.sentinel for each in running]
        wait([*pipes, *sentinels], timeout=1.0)
        for each in list(running):
            _forward_messages(each, on_event)
            if not each.process.is_alive():
                _forward_messages(each, on_event)
                each.process.join()
                running.remove(each)
                _report_end(each, on_event, stopping)
            elif time.monotonic() - each.last_message_time > (
                PAUSE_TIMEOUT_SECONDS if stopping else self.timeout
            ):
                each.is_hung = True
                each.process.kill()


def _start_server() -> None:
    """Start the fork server if it is not running.

    Signals to the process group, such as Ctrl-C at a terminal, must not stop the server: this
    process stops the cells in an orderly way.
    """
    resource_tracker.ensure_running()  # first, because it unblocks signals
    with block_signals():
        forkserver.ensure_running()


@contextlib.contextmanager
def _hide_missing_script() -> Iterator[None]:
    """Keep new processes from running the file of `__main__` if there is none.

    `python - < script.py` calls it "<stdin>". What cells need of a script, they get by value.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or Path(file).exists():
        yield
        return
    main.__file__ = None
    try:
        yield
    finally:
        main.__file__ = file


def _forward_messages(cell: _RunningCell, on_event: EventHandler) -> None:
    with contextlib.suppress(EOFError, OSError):
        while not cell.pipe.closed and cell.pipe.poll():
            step, loss = cell.pipe.recv()
            cell.last_message_time = time.monotonic()
            on_event(Event(cell.job, "stepped", step, loss))


def _report_end(cell: _RunningCell, on_event: EventHandler, stopping: bool) -> None:
    """Report the result of a cell whose process has exited."""
    cell.pipe.close()
    code = cell.process.exitcode
    if code == DISK_FULL_EXIT_CODE:
        raise DiskFullError(
            f"cannot write to {cell.job.folder}: the disk is full or read-only; free disk space "
            "and rerun the same command to resume"
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
        return "hung: no progress within the timeout"
    if code == 0:
        return "the process received SIGTERM"
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = "; out of memory, or killed manually" if name == "SIGKILL" else ""
        return f"the process was killed by {name}{hint}"
    log = sidecar_path(cell.job.folder, LOG_SUFFIX)
    return f"the process exited with code {code}" + (f"; see {log}" if log.exists() else "")


def _run_in_process(job: Job, pipe: Connection, gpus: tuple[int, ...]) -> None:
    """Train a cell; the target function of its process."""
    os.setpgrp()  # Ctrl-C at the terminal reaches the parent only, which then sends SIGTERM
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also one that arrived before this line
    unblock_signals()
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(_visible_device(gpu) for gpu in gpus)
    torch.set_num_threads(1)
    with sidecar_path(job.folder, LOG_SUFFIX).open("a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    def send(step: int, loss: float) -> None:
        try:
            pipe.send((step, loss))
        except OSError:  # the parent died: pause as on SIGTERM
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        if len(gpus) > 1:
            run_cell_processes(job, len(gpus), send)
        else:
            run_cell(job, send)
    except DiskFullError:
        sys.exit(DISK_FULL_EXIT_CODE)


def _visible_device(gpu: int) -> str:
    """Return the CUDA device of a slot, among the devices visible to this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",")[gpu] if visible else str(gpu)
