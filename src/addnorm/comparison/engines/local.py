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

from addnorm.comparison.cell import NoRoom, work
from addnorm.comparison.cell_result import LOG, Finished, beside
from addnorm.comparison.engines.base import Engine, Event, Told
from addnorm.comparison.job import Job
from addnorm.core.errors import UserError
from addnorm.train.device import cores
from addnorm.train.throughput import Bell

NO_ROOM = 74
"""Exit code of a process that could not write."""
IMPORTED_LATE = ["torch._dynamo", "sacrebleu", "addnorm.comparison.tasks.table_training"]
"""What a training imports only when it is under way; imported once, for all cells. What is not
installed is left out."""
GRACE = 60.0
"""Seconds that a cell has to save its state when it is asked to pause."""


@dataclass
class _Running:
    """A cell and its process."""

    job: Job
    process: BaseProcess
    pipe: Connection
    slot: int
    heard: float = field(default_factory=time.monotonic)
    hung: bool = False


class LocalEngine(Engine):
    """Processes forked from a server that has imported torch once; each dies with its cell."""

    def __init__(self, *, workers: int | None = None, limit: float = 600.0) -> None:
        if workers is not None and workers < 1:
            raise UserError(f"workers cannot be {workers}; wanted 1 or more")
        if not limit > 0:
            raise UserError(f"limit cannot be {limit:g} seconds; wanted more than 0")
        self.gpus = torch.cuda.device_count()
        self._workers = workers or self.gpus or cores()
        self.limit = limit
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__, *IMPORTED_LATE])
        ensure_running()  # it imports while the data are prepared

    @property
    def workers(self) -> int:
        """Cells at a time."""
        return self._workers

    def run(self, jobs: Sequence[Job], told: Told, bell: Bell) -> None:
        """Run all jobs, as many at a time as there are workers."""
        waiting, running = list(jobs), dict[int, _Running]()
        stopping = False
        try:
            while running or (waiting and not bell.rung):
                while waiting and len(running) < self.workers and not bell.rung:
                    slot = next(n for n in range(self.workers) if n not in running)
                    running[slot] = self._start(waiting.pop(0), slot)
                    told(Event(running[slot].job, "began"))
                if bell.rung and not stopping:
                    stopping = True
                    for each in running.values():
                        each.process.terminate()
                self._listen(running, told, stopping)
        finally:
            for each in running.values():  # only if something was raised
                each.process.kill()
                each.process.join()

    def _start(self, job: Job, slot: int) -> _Running:
        ours, theirs = self.context.Pipe(duplex=False)
        job.folder.mkdir(parents=True, exist_ok=True)
        gpu = slot % self.gpus if self.gpus else None
        process = self.context.Process(target=_cell, args=(job, theirs, gpu), daemon=False)
        process.start()
        theirs.close()
        return _Running(job, process, ours, slot)

    def _listen(self, running: dict[int, _Running], told: Told, stopping: bool) -> None:
        """Wait for news of any cell, and pass it on."""
        handles = [each.pipe for each in running.values() if not each.pipe.closed]
        ends = [each.process.sentinel for each in running.values()]
        wait([*handles, *ends], timeout=1.0)
        for slot, each in list(running.items()):
            _read(each, told)
            if not each.process.is_alive():
                _read(each, told)
                each.process.join()
                del running[slot]
                _ended(each, told, stopping)
            elif time.monotonic() - each.heard > (GRACE if stopping else self.limit):
                each.hung = True
                each.process.kill()


def _read(each: _Running, told: Told) -> None:
    """Pass on what a cell says."""
    with contextlib.suppress(EOFError, OSError):
        while not each.pipe.closed and each.pipe.poll():
            step, loss = each.pipe.recv()
            each.heard = time.monotonic()
            told(Event(each.job, "stepped", step, loss))


def _ended(each: _Running, told: Told, stopping: bool) -> None:
    """What became of a process that is no more."""
    each.pipe.close()
    code = each.process.exitcode
    if code == NO_ROOM:
        raise NoRoom(
            f"no room for {each.job.folder}: the disk is full or cannot be written; make room and "
            "give the same command again, nothing is lost"
        )
    end = Finished.read(each.job.folder)
    if end is not None:
        told(Event(each.job, "ended", end.step, end.loss, end))
    elif stopping or (code == 0 and each.job.until is not None):
        told(Event(each.job, "paused"))
    else:
        end = Finished("crashed", _why(each, code))
        end.save(each.job.folder)
        told(Event(each.job, "ended", end=end))


def _why(each: _Running, code: int | None) -> str:
    if each.hung:
        return "hung: no sign of life within the limit"
    if code == 0:
        return "its process was asked to stop from outside (SIGTERM)"
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        more = "; out of memory, or killed by hand" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{more}"
    return f"its process ended with code {code}; see {beside(each.job.folder, LOG)}"


def _cell(job: Job, pipe: Connection, gpu: int | None) -> None:
    """The process of one cell."""
    os.setpgrp()  # Ctrl-C at the terminal is for whoever leads; they tell us in good time
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible(gpu)
    torch.set_num_threads(1)
    with beside(job.folder, LOG).open("a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    def tell(step: int, loss: float) -> None:
        try:
            pipe.send((step, loss))
        except OSError:  # nobody leads any more: pause, as if asked to
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        work(job, tell)
    except NoRoom:
        sys.exit(NO_ROOM)


def _visible(gpu: int) -> str:
    """The GPU that a slot uses, of those that we were given."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return given.split(",")[gpu] if given else str(gpu)
