"""Cells on a Ray cluster: one CPU or GPU each, results come back as if they had run here.

Where a node sees the comparison's folder (one machine, or a shared file system) a cell works in it,
and goes on there after an interruption. Elsewhere corpus and tokenizer travel to the node, and the
files of the finished cell travel back.
"""

import math
import os
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from addnorm.comparison import layout as files
from addnorm.comparison.cell import DiskFullError, run_cell
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.engines.base import Engine, Event, EventHandler
from addnorm.comparison.job import Job
from addnorm.core.errors import UserError
from addnorm.core.interrupts import StopFlag
from addnorm.train.run_folder import CHECKPOINTS, CONFIG

FileContents = dict[str, bytes]
"""Contents by path, from a common folder on."""


class RayEngine(Engine):
    """Tasks of a Ray cluster, one process a cell."""

    def __init__(
        self, *, workers: int | None = None, address: str | None = None, timeout: float = 600.0
    ) -> None:
        self.ray, self.timeout = _import_ray(), timeout
        address = address or os.environ.get("RAY_ADDRESS")
        try:
            _check_reachable(address)
            self.ray.init(
                address=address,
                ignore_reinit_error=True,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except (OSError, ValueError, RuntimeError) as problem:
            raise UserError(
                f"no Ray cluster answers at {address or 'the usual place'} "
                f"({' '.join(str(problem).split())[:200]}); start one with `ray start --head`, or "
                "leave --address out to use this machine"
            ) from None
        there = self.ray.cluster_resources()
        self.gpus = int(there.get("GPU", 0))
        self._workers = workers or self.gpus or max(1, int(there.get("CPU", 1)))

    @property
    def workers(self) -> int:
        """Cells at a time."""
        return self._workers

    def run(self, jobs: Sequence[Job], on_event: EventHandler, stop_flag: StopFlag) -> None:
        """Send all jobs, as many at a time as there are workers."""
        if not jobs:
            return
        ray, waiting = self.ray, list(jobs)
        root = waiting[0].folder.parent.parent
        mark = root / f".ray-{uuid.uuid4().hex}"
        mark.touch()
        board = ray.remote(num_cpus=0)(_ProgressActor).remote()
        baggage = ray.put(_pack_files(waiting[0], root))
        cell = ray.remote(num_cpus=1, num_gpus=1 if self.gpus else 0, max_calls=1, max_retries=0)(
            _run_on_node
        )
        running: dict[Any, Job] = {}
        heard: dict[str, tuple[int, float]] = {}
        try:
            while running or (waiting and not stop_flag.requested):
                while waiting and len(running) < self.workers and not stop_flag.requested:
                    job = waiting.pop(0)
                    running[cell.remote(job, board, baggage, mark)] = job
                    heard[job.name] = (-1, math.inf)  # it may wait for a free node
                    on_event(Event(job, "began"))
                if stop_flag.requested:
                    board.stop.remote()
                ready, _ = ray.wait(list(running), timeout=0.5)
                self._listen(board, running, heard, on_event)
                for done in ready:
                    self._collect_result(done, running.pop(done), on_event, stop_flag)
        finally:
            mark.unlink(missing_ok=True)
            for each in running:
                ray.cancel(each, force=True)
            ray.kill(board)

    def _listen(
        self,
        progress_actor: Any,
        running: dict[Any, Job],
        last_reports: dict[str, tuple[int, float]],
        on_event: EventHandler,
    ) -> None:
        news = self.ray.get(progress_actor.read.remote())
        for task, job in running.items():
            step, loss = news.get(job.name, (-1, 0.0))
            if step != last_reports[job.name][0]:
                last_reports[job.name] = (step, time.monotonic())
                on_event(Event(job, "stepped", step, loss))
            elif time.monotonic() - last_reports[job.name][1] > self.timeout:
                self.ray.cancel(task, force=True)

    def _collect_result(
        self, task: Any, job: Job, on_event: EventHandler, stop_flag: StopFlag
    ) -> None:
        try:
            found: FileContents | None = self.ray.get(task)
        except self.ray.exceptions.TaskCancelledError:
            _record_crash(job, "hung: no sign of life within the limit", on_event)
            return
        except self.ray.exceptions.OutOfMemoryError:
            _record_crash(job, "out of memory", on_event)
            return
        except self.ray.exceptions.RayTaskError as problem:
            if isinstance(problem.cause, DiskFullError):
                raise problem.cause from None
            _record_crash(job, " ".join(str(problem.cause).split()), on_event)
            return
        except self.ray.exceptions.RayError as problem:
            if stop_flag.requested:
                on_event(Event(job, "paused"))
                return
            _record_crash(job, f"its process or node was lost ({type(problem).__name__})", on_event)
            return
        for name, data in (found or {}).items():
            path = job.folder.parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if found:
            job.recipe.save(job.folder / CONFIG)  # as it is here, not on the node
        end = CellResult.read(job.folder)
        if end is None:
            on_event(Event(job, "paused"))
        else:
            on_event(Event(job, "ended", end.step, end.loss, end))


class _ProgressActor:
    """An actor: where cells tell how far they are, and learn that they are to stop."""

    def __init__(self) -> None:
        self.latest: dict[str, tuple[int, float]] = {}
        self.stopping = False

    def tell(self, name: str, step: int, loss: float) -> bool:
        """News of a cell; whether it is to pause."""
        self.latest[name] = (step, loss)
        return self.stopping

    def read(self) -> dict[str, tuple[int, float]]:
        """The last news of each cell."""
        return self.latest

    def stop(self) -> None:
        """Ask all cells to pause."""
        self.stopping = True


def _run_on_node(
    job: Job, progress_actor: Any, packed_files: FileContents, marker: Path
) -> FileContents | None:
    """One cell, in a process of a node; the files of a finished one if they are not there yet."""
    ray = _import_ray()
    torch.set_num_threads(1)

    def tell(step: int, loss: float) -> None:
        if ray.get(progress_actor.tell.remote(job.name, step, loss)):
            os.kill(os.getpid(), signal.SIGTERM)  # pauses at the next step

    if marker.exists():
        job.folder.mkdir(parents=True, exist_ok=True)
        run_cell(job, tell)
        return {}
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        _unpack(packed_files, here)
        places = {"data": str(here / files.DATA), "tokenizer": str(here / files.TOKENIZER)}
        known = job.recipe.to_flat_dict()
        recipe = job.recipe.model_copy(
            update={name: place for name, place in places.items() if name in known}
        )
        own = here / files.CELLS / job.name
        own.mkdir(parents=True)
        score = here / files.SCORE if job.score else None
        run_cell(replace(job, recipe=recipe, folder=own, score=score), tell)
        shutil.rmtree(own / CHECKPOINTS, ignore_errors=True)
        cells = here / files.CELLS
        return {str(path.relative_to(cells)): path.read_bytes() for path in _list_files(cells)}


def _pack_files(job: Job, root: Path) -> FileContents:
    """What a cell needs, by the names of the comparison's folder."""
    folders = {files.DATA: Path(job.recipe.data)} | ({files.SCORE: job.score} if job.score else {})
    packed = {
        f"{name}/{path.relative_to(folder)}": path.read_bytes()
        for name, folder in folders.items()
        for path in _list_files(folder)
    }
    tokenizer = root / files.TOKENIZER
    return packed | ({tokenizer.name: tokenizer.read_bytes()} if tokenizer.is_file() else {})


def _unpack(packed_files: FileContents, folder: Path) -> None:
    for name, data in packed_files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def _list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]


def _check_reachable(address: str | None) -> None:
    """Whether anybody listens there, in seconds; Ray itself tries for minutes."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


def _record_crash(job: Job, reason: str, on_event: EventHandler) -> None:
    end = CellResult("crashed", reason)
    job.folder.mkdir(parents=True, exist_ok=True)
    end.save(job.folder)
    on_event(Event(job, "ended", end=end))


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise UserError(
            "--engine ray needs the package ray; install addnorm[cluster], or leave --engine out"
        ) from None
    return ray
