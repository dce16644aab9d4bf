"""Ray engine: one task per cell on a cluster, with one CPU or GPU each, or several GPUs.

A node that sees the folder of the comparison (the same machine or a shared file system) trains the
cell in that folder and can resume it there. Any other node receives the data and the tokenizer as
bytes, trains in a temporary folder and returns the files of the finished cell. A marker file in the
folder of the comparison tells the two cases apart.
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

from addnorm.comparison import folder_layout as files
from addnorm.comparison.cell_job import Job, StepCallback
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.engines.base import Engine, Event, EventHandler
from addnorm.comparison.engines.cell_options import CellOption
from addnorm.comparison.engines.file_transfer import (
    FileContents,
    read_files,
    write_cell_files,
    write_files,
)
from addnorm.comparison.engines.torchrun import check_processes, run_cell_processes
from addnorm.comparison.run_cell import DiskFullError, run_cell
from addnorm.comparison.spec import DEMO
from addnorm.core.errors import UserError
from addnorm.core.interrupts import StopFlag, ignore_repeated_signals
from addnorm.train.run_folder import CHECKPOINTS, CONFIG

SINGLE_FILE = "file"
"""Folder of the data if they are one file, which keeps its name."""


class RayEngine(Engine):
    """Engine that runs every cell as a task of a Ray cluster."""

    def __init__(
        self,
        *,
        workers: int | None = None,
        address: str | None = None,
        timeout: float = 600.0,
        gpus_per_cell: int | str | None = None,
    ) -> None:
        super().__init__(workers=workers, timeout=timeout)
        self.ray = _import_ray()
        address = address or os.environ.get("RAY_ADDRESS")
        try:
            _check_reachable(address)
            self.ray.init(
                address=address,
                ignore_reinit_error=True,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(
                f"no Ray cluster at {address or 'the default address'} "
                f"({' '.join(str(error).split())[:200]}); start one with `ray start --head`, set "
                "RAY_AUTH_TOKEN if it requires a token, or leave out --address to use this machine"
            ) from None
        resources = self.ray.cluster_resources()
        self.gpus = int(resources.get("GPU", 0))
        default = min(1, self.gpus) if gpus_per_cell is None else gpus_per_cell
        self.gpus_per_cell = CellOption.parse("gpus_per_cell", default)
        self._workers = workers or self.gpus or max(1, int(resources.get("CPU", 1)))

    @property
    def workers(self) -> int:
        return self._workers

    def run(self, jobs: Sequence[Job], on_event: EventHandler, stop_flag: StopFlag) -> None:
        if not jobs:
            return
        ray, waiting = self.ray, list(jobs)
        gpus = {job.name: self._count_gpus(job) for job in jobs}
        root = waiting[0].folder.parent.parent
        marker = root / f".ray-{uuid.uuid4().hex}"
        marker.touch()
        actor = ray.remote(num_cpus=0)(_ProgressActor).remote()
        packed_files = ray.put(_pack_files(waiting[0], root))
        run_on_node = ray.remote(num_cpus=1, max_calls=1, max_retries=0)(_run_on_node)
        running: dict[Any, Job] = {}
        last_reports: dict[str, tuple[int, float]] = {}  # step and time, by cell
        try:
            while running or (waiting and not stop_flag.requested):
                while waiting and len(running) < self.workers and not stop_flag.requested:
                    job = waiting.pop(0)
                    count = gpus[job.name]
                    task = run_on_node.options(num_gpus=count).remote(
                        job, actor, packed_files, marker, max(1, count)
                    )
                    running[task] = job
                    # The timeout starts with the first report: a task may wait for a free node.
                    last_reports[job.name] = (-1, math.inf)
                    on_event(Event(job, "began"))
                if stop_flag.requested:
                    actor.stop.remote()
                ready, _ = ray.wait(list(running), timeout=0.5)
                self._listen(actor, running, last_reports, on_event)
                for done in ready:
                    self._collect_result(done, running.pop(done), on_event, stop_flag)
        finally:
            marker.unlink(missing_ok=True)
            for each in running:
                ray.cancel(each, force=True)
            ray.kill(actor)

    def _count_gpus(self, job: Job) -> int:
        """Return the number of GPUs of a cell, checked."""
        count = self.gpus_per_cell.count_for(job.recipe.to_flat_dict())
        check_processes(job, count)
        if count > self.gpus:
            raise UserError(
                f"gpus_per_cell: expected at most {self.gpus}, the GPUs of the cluster, got {count}"
            )
        return count

    def _listen(
        self,
        progress_actor: Any,
        running: dict[Any, Job],
        last_reports: dict[str, tuple[int, float]],
        on_event: EventHandler,
    ) -> None:
        reports = self.ray.get(progress_actor.read.remote())
        for task, job in running.items():
            step, loss = reports.get(job.name, (-1, 0.0))
            if step != last_reports[job.name][0]:
                last_reports[job.name] = (step, time.monotonic())
                on_event(Event(job, "stepped", step, loss))
            elif time.monotonic() - last_reports[job.name][1] > self.timeout:
                self.ray.cancel(task, force=True)

    def _collect_result(
        self, task: Any, job: Job, on_event: EventHandler, stop_flag: StopFlag
    ) -> None:
        try:
            returned: FileContents | None = self.ray.get(task)
        except self.ray.exceptions.TaskCancelledError:
            if stop_flag.requested:
                on_event(Event(job, "paused"))
            else:
                _record_crash(job, "hung: no progress within the timeout", on_event)
            return
        except self.ray.exceptions.OutOfMemoryError:
            _record_crash(job, "out of memory", on_event)
            return
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DiskFullError):
                raise error.cause from None
            _record_crash(job, " ".join(str(error.cause).split()), on_event)
            return
        except self.ray.exceptions.RayError as error:
            if stop_flag.requested:
                on_event(Event(job, "paused"))
                return
            _record_crash(job, f"the process or node was lost ({type(error).__name__})", on_event)
            return
        if returned:
            try:
                write_cell_files(returned, job.folder)
            except UserError as error:
                _record_crash(job, str(error), on_event)
                return
            job.recipe.save(job.folder / CONFIG)  # with the paths of this machine
        end = CellResult.read(job.folder)
        if end is None:
            on_event(Event(job, "paused"))
        else:
            on_event(Event(job, "ended", end.step, end.loss, end))


class _ProgressActor:
    """Ray actor that collects the progress of all cells and tells them to stop."""

    def __init__(self) -> None:
        self.latest: dict[str, tuple[int, float]] = {}
        self.stopping = False

    def report(self, name: str, step: int, loss: float) -> bool:
        """Record the progress of a cell; return whether the cell must pause."""
        self.latest[name] = (step, loss)
        return self.stopping

    def read(self) -> dict[str, tuple[int, float]]:
        """Return the last step and loss of each cell."""
        return self.latest

    def stop(self) -> None:
        """Make all cells pause at their next report."""
        self.stopping = True


def _run_on_node(
    job: Job, progress_actor: Any, packed_files: FileContents, marker: Path, processes: int = 1
) -> FileContents | None:
    """Train a cell on a node; return its files if the node does not share the folder."""
    ray = _import_ray()
    torch.set_num_threads(1)
    # Every report after a stop repeats the signal. Ray takes KeyboardInterrupt for a cancellation.
    ignore_repeated_signals()

    def send(step: int, loss: float) -> None:
        if ray.get(progress_actor.report.remote(job.name, step, loss)):
            os.kill(os.getpid(), signal.SIGTERM)  # the trainer pauses at the next step

    if marker.exists():
        job.folder.mkdir(parents=True, exist_ok=True)
        _run(job, processes, send)
        return {}
    with tempfile.TemporaryDirectory() as name:
        local = _unpack_job(job, packed_files, Path(name))
        _run(local, processes, send)
        shutil.rmtree(local.folder / CHECKPOINTS, ignore_errors=True)
        return read_files(local.folder.parent)


def _run(job: Job, processes: int, on_step: StepCallback) -> None:
    if processes > 1:
        run_cell_processes(job, processes, on_step)
    else:
        run_cell(job, on_step)


def _pack_files(job: Job, root: Path) -> FileContents:
    """Return the data, held-out examples and tokenizer, by path in the comparison's folder."""
    data = Path(job.recipe.data)
    if job.recipe.data == DEMO:  # of a task of one's own, which has no data
        packed = {}
    elif data.is_file():
        packed = {f"{SINGLE_FILE}/{data.name}": data.read_bytes()}
    else:
        packed = read_files(data, prefix=f"{files.DATA}/")
    if job.score:
        packed |= read_files(job.score, prefix=f"{files.SCORE}/")
    tokenizer = root / files.TOKENIZER
    return packed | ({tokenizer.name: tokenizer.read_bytes()} if tokenizer.is_file() else {})


def _unpack_job(job: Job, packed_files: FileContents, root: Path) -> Job:
    """Write the files of `_pack_files` below a folder; return the job with its paths there."""
    write_files(packed_files, root)
    single = [name for name in packed_files if name.startswith(f"{SINGLE_FILE}/")]
    paths = {
        "data": str(root / (single[0] if single else files.DATA)),
        "tokenizer": str(root / files.TOKENIZER),
    }
    if job.recipe.data == DEMO:
        del paths["data"]
    known = job.recipe.to_flat_dict()  # the recipe of a table has no tokenizer
    recipe = job.recipe.model_copy(
        update={name: path for name, path in paths.items() if name in known}
    )
    folder = root / files.CELLS / job.name
    folder.mkdir(parents=True)
    score = root / files.SCORE if job.score else None
    return replace(job, recipe=recipe, folder=folder, score=score)


def _check_reachable(address: str | None) -> None:
    """Raise OSError within seconds if the address does not answer; Ray retries for minutes."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


def _record_crash(job: Job, reason: str, on_event: EventHandler) -> None:
    result = CellResult("crashed", reason)
    job.folder.mkdir(parents=True, exist_ok=True)
    result.save(job.folder)
    on_event(Event(job, "ended", end=result))


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise UserError("--engine ray requires the package ray; install addnorm[cluster]") from None
    return ray
