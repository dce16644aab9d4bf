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
from addnorm.comparison.cell import NoRoom, work
from addnorm.comparison.cell_result import Finished
from addnorm.comparison.engines.base import Engine, Event, Told
from addnorm.comparison.job import Job
from addnorm.core.errors import UserError
from addnorm.train.run_folder import CHECKPOINTS, CONFIG
from addnorm.train.throughput import Bell

Files = dict[str, bytes]
"""Contents by path, from a common folder on."""


class RayEngine(Engine):
    """Tasks of a Ray cluster, one process a cell."""

    def __init__(
        self, *, workers: int | None = None, address: str | None = None, limit: float = 600.0
    ) -> None:
        self.ray, self.limit = _ray(), limit
        address = address or os.environ.get("RAY_ADDRESS")
        try:
            _knock(address)
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

    def run(self, jobs: Sequence[Job], told: Told, bell: Bell) -> None:
        """Send all jobs, as many at a time as there are workers."""
        if not jobs:
            return
        ray, waiting = self.ray, list(jobs)
        root = waiting[0].folder.parent.parent
        mark = root / f".ray-{uuid.uuid4().hex}"
        mark.touch()
        board = ray.remote(num_cpus=0)(_Board).remote()
        baggage = ray.put(_packed(waiting[0], root))
        cell = ray.remote(num_cpus=1, num_gpus=1 if self.gpus else 0, max_calls=1, max_retries=0)(
            _cell
        )
        running: dict[Any, Job] = {}
        heard: dict[str, tuple[int, float]] = {}
        try:
            while running or (waiting and not bell.rung):
                while waiting and len(running) < self.workers and not bell.rung:
                    job = waiting.pop(0)
                    running[cell.remote(job, board, baggage, mark)] = job
                    heard[job.name] = (-1, math.inf)  # it may wait for a free node
                    told(Event(job, "began"))
                if bell.rung:
                    board.stop.remote()
                ready, _ = ray.wait(list(running), timeout=0.5)
                self._listen(board, running, heard, told)
                for done in ready:
                    self._ended(done, running.pop(done), told, bell)
        finally:
            mark.unlink(missing_ok=True)
            for each in running:
                ray.cancel(each, force=True)
            ray.kill(board)

    def _listen(
        self, board: Any, running: dict[Any, Job], heard: dict[str, tuple[int, float]], told: Told
    ) -> None:
        news = self.ray.get(board.read.remote())
        for task, job in running.items():
            step, loss = news.get(job.name, (-1, 0.0))
            if step != heard[job.name][0]:
                heard[job.name] = (step, time.monotonic())
                told(Event(job, "stepped", step, loss))
            elif time.monotonic() - heard[job.name][1] > self.limit:
                self.ray.cancel(task, force=True)

    def _ended(self, task: Any, job: Job, told: Told, bell: Bell) -> None:
        try:
            found: Files | None = self.ray.get(task)
        except self.ray.exceptions.TaskCancelledError:
            _crashed(job, "hung: no sign of life within the limit", told)
            return
        except self.ray.exceptions.OutOfMemoryError:
            _crashed(job, "out of memory", told)
            return
        except self.ray.exceptions.RayTaskError as problem:
            if isinstance(problem.cause, NoRoom):
                raise problem.cause from None
            _crashed(job, " ".join(str(problem.cause).split()), told)
            return
        except self.ray.exceptions.RayError as problem:
            if bell.rung:
                told(Event(job, "paused"))
                return
            _crashed(job, f"its process or node was lost ({type(problem).__name__})", told)
            return
        for name, data in (found or {}).items():
            path = job.folder.parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if found:
            job.recipe.save(job.folder / CONFIG)  # as it is here, not on the node
        end = Finished.read(job.folder)
        if end is None:
            told(Event(job, "paused"))
        else:
            told(Event(job, "ended", end.step, end.loss, end))


class _Board:
    """An actor: where cells tell how far they are, and learn that they are to stop."""

    def __init__(self) -> None:
        self.news: dict[str, tuple[int, float]] = {}
        self.stopping = False

    def tell(self, name: str, step: int, loss: float) -> bool:
        """News of a cell; whether it is to pause."""
        self.news[name] = (step, loss)
        return self.stopping

    def read(self) -> dict[str, tuple[int, float]]:
        """The last news of each cell."""
        return self.news

    def stop(self) -> None:
        """Ask all cells to pause."""
        self.stopping = True


def _cell(job: Job, board: Any, baggage: Files, mark: Path) -> Files | None:
    """One cell, in a process of a node; the files of a finished one if they are not there yet."""
    ray = _ray()
    torch.set_num_threads(1)

    def tell(step: int, loss: float) -> None:
        if ray.get(board.tell.remote(job.name, step, loss)):
            os.kill(os.getpid(), signal.SIGTERM)  # pauses at the next step

    if mark.exists():
        job.folder.mkdir(parents=True, exist_ok=True)
        work(job, tell)
        return {}
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        _unpack(baggage, here)
        places = {"data": str(here / files.DATA), "tokenizer": str(here / files.TOKENIZER)}
        known = job.recipe.flat()
        recipe = job.recipe.model_copy(
            update={name: place for name, place in places.items() if name in known}
        )
        own = here / files.CELLS / job.name
        own.mkdir(parents=True)
        score = here / files.SCORE if job.score else None
        work(replace(job, recipe=recipe, folder=own, score=score), tell)
        shutil.rmtree(own / CHECKPOINTS, ignore_errors=True)
        cells = here / files.CELLS
        return {str(path.relative_to(cells)): path.read_bytes() for path in _inside(cells)}


def _packed(job: Job, root: Path) -> Files:
    """What a cell needs, by the names of the comparison's folder."""
    folders = {files.DATA: Path(job.recipe.data)} | ({files.SCORE: job.score} if job.score else {})
    packed = {
        f"{name}/{path.relative_to(folder)}": path.read_bytes()
        for name, folder in folders.items()
        for path in _inside(folder)
    }
    tokenizer = root / files.TOKENIZER
    return packed | ({tokenizer.name: tokenizer.read_bytes()} if tokenizer.is_file() else {})


def _unpack(baggage: Files, folder: Path) -> None:
    for name, data in baggage.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def _inside(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]


def _knock(address: str | None) -> None:
    """Whether anybody listens there, in seconds; Ray itself tries for minutes."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


def _crashed(job: Job, why: str, told: Told) -> None:
    end = Finished("crashed", why)
    job.folder.mkdir(parents=True, exist_ok=True)
    end.save(job.folder)
    told(Event(job, "ended", end=end))


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise UserError(
            "--engine ray needs the package ray; install addnorm[cluster], or leave --engine out"
        ) from None
    return ray
