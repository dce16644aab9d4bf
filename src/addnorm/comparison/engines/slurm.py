"""SLURM engine: array jobs by `sbatch`, with scripts that can be read and changed.

Every call submits the cells that are neither finished nor in the queue. Files tell how they are
doing: results and progress in the folder of the comparison, which all nodes must see. The engine
waits, but need not: jobs go on without it, and the next call finds them in the queue by their name.

    slurm/001/job.sh       script of an array job; cells with the same resources are one array
    slurm/001/cells.txt    the cell of each of its tasks
    slurm/001/jobs.pickle  what their processes need
    slurm/001/progress/    step and loss of each cell
    slurm/001/3.log        output of the script for task 3; that of the cell is cells/NAME.log
"""

import hashlib
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from addnorm.comparison import folder_layout as files
from addnorm.comparison.cell_job import Job
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.engines import slurm_queue as queue
from addnorm.comparison.engines.base import Engine, Event, EventHandler
from addnorm.comparison.engines.job_files import Progress, write_jobs
from addnorm.comparison.engines.slurm_queue import ArrayTask, QueuedTask, QueueError
from addnorm.comparison.engines.slurm_script import (
    JOBS,
    NAMES,
    PROGRESS,
    SCRIPT,
    Resources,
    SlurmOptions,
    make_script,
)
from addnorm.comparison.run_cell import DISK_FULL_EXIT_CODE, DiskFullError
from addnorm.core.errors import UserError
from addnorm.core.interrupts import StopFlag

MAX_ARRAY_SIZE = 1000
"""Cells in one array job; the default limit of SLURM is 1001."""
FILES_INTERVAL_SECONDS = 1.0
STATES_BEFORE_RUN = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")


@dataclass
class _SubmittedCell:
    job: Job
    task: ArrayTask
    batch: Path
    """Folder of the array job."""
    last_seen: float = field(default_factory=time.monotonic)
    """When the cell was last known to exist: in the queue, or by its progress."""
    progress: Progress | None = None
    progress_time: float = math.inf
    """When the progress last changed; infinite while the cell waits in the queue."""
    has_begun: bool = False
    wait_reason: str = ""
    is_hung: bool = False


class SlurmEngine(Engine):
    """Engine that runs every cell as a task of an array job of SLURM.

    Args:
        workers: cells of an array at the same time; None leaves it to SLURM
        timeout: seconds without progress before a cell is killed
        options: resources and further options of the jobs
        poll_seconds: seconds between two calls of squeue
        lost_seconds: seconds after which a cell that is neither in the queue nor making progress
            counts as lost; files of other machines can appear late
    """

    stop_message = "the jobs of SLURM are canceled; running cells have saved a checkpoint"

    def __init__(
        self,
        *,
        workers: int | None = None,
        timeout: float = 600.0,
        options: SlurmOptions | None = None,
        poll_seconds: float = 10.0,
        lost_seconds: float = 30.0,
    ) -> None:
        super().__init__(workers=workers, timeout=timeout)
        self.options, self.poll_seconds = options or SlurmOptions(), poll_seconds
        self.lost_seconds = lost_seconds
        self._workers = workers

    @property
    def workers(self) -> int:
        return self._workers or MAX_ARRAY_SIZE

    def run(self, jobs: Sequence[Job], on_event: EventHandler, stop_flag: StopFlag) -> None:
        if not jobs:
            return
        root = jobs[0].folder.parent.parent
        groups = self.group_jobs(jobs)  # first, because it checks the options
        cells = self._find_in_queue(root, jobs)
        try:
            for resources, group in groups:
                left = [job for job in group if job.name not in cells]
                for start in range(0, len(left), MAX_ARRAY_SIZE):
                    if not stop_flag.requested:
                        submitted = self._submit(root, resources, left[start:][:MAX_ARRAY_SIZE])
                        cells |= {cell.job.name: cell for cell in submitted}
            self._wait(cells, on_event, stop_flag)
        finally:
            with suppress(QueueError):  # there are cells left after an exception only
                queue.cancel(cell.task for cell in cells.values())

    def group_jobs(self, jobs: Sequence[Job]) -> list[tuple[Resources, list[Job]]]:
        """Return the jobs by their resources; each group becomes an array job."""
        groups: dict[Resources, list[Job]] = {}
        for job in jobs:
            groups.setdefault(self.options.find_resources(job), []).append(job)
        return list(groups.items())

    def preview_scripts(self, jobs: Sequence[Job], root: Path) -> dict[Path, str]:
        """Return the scripts that `run` would submit, by path; nothing is written."""
        scripts = {}
        for number, (resources, group) in enumerate(self.group_jobs(jobs), start=1):
            batch = root / files.SLURM / f"{number:03d}"
            checksum = "SHA-256-OF-JOBS"
            scripts[batch / SCRIPT] = self._make_script(batch, resources, len(group), checksum)
        return scripts

    def _make_script(self, batch: Path, resources: Resources, num_cells: int, checksum: str) -> str:
        return make_script(
            batch,
            _job_name(batch),
            options=self.options,
            resources=resources,
            num_cells=min(num_cells, MAX_ARRAY_SIZE),
            workers=self._workers,
            checksum=checksum,
        )

    def _submit(self, root: Path, resources: Resources, jobs: list[Job]) -> list[_SubmittedCell]:
        batch = _make_batch_folder(root)
        checksum = write_jobs(batch / JOBS, jobs)
        (batch / NAMES).write_text("".join(f"{job.name}\n" for job in jobs), encoding="utf-8")
        for folder in (batch / PROGRESS, root / files.CELLS):
            folder.mkdir(exist_ok=True)
        script = self._make_script(batch, resources, len(jobs), checksum)
        (batch / SCRIPT).write_text(script, encoding="utf-8")
        number = queue.submit(batch / SCRIPT)
        return [
            _SubmittedCell(job, ArrayTask(number, index), batch) for index, job in enumerate(jobs)
        ]

    def _find_in_queue(self, root: Path, jobs: Sequence[Job]) -> dict[str, _SubmittedCell]:
        """Return the cells that an earlier call submitted and that still wait or run."""
        batches = {_job_name(batch): batch for batch in (root / files.SLURM).glob("[0-9]*")}
        by_name = {job.name: job for job in jobs}
        cells: dict[str, _SubmittedCell] = {}
        if not batches:
            return cells
        for task, queued in queue.read_queue().items():
            if (batch := batches.get(queued.name)) is None:
                continue
            names = (batch / NAMES).read_text(encoding="utf-8").splitlines()
            if (
                task.position < len(names)
                and (job := by_name.get(names[task.position])) is not None
            ):
                cells[job.name] = _SubmittedCell(job, task, batch)
        return cells

    def _wait(
        self, cells: dict[str, _SubmittedCell], on_event: EventHandler, stop_flag: StopFlag
    ) -> None:
        """Wait until every cell has ended, and remove it from `cells`."""
        last_poll, is_stopping = -math.inf, False
        queue_works_at = time.monotonic()
        while cells:
            if stop_flag.requested and not is_stopping:
                is_stopping = True
                with suppress(QueueError):  # some may have just ended
                    queue.cancel(cell.task for cell in cells.values())
            for name, cell in list(cells.items()):
                if self._check_files(cell, on_event):
                    del cells[name]
            if time.monotonic() - last_poll >= (1.0 if is_stopping else self.poll_seconds):
                last_poll = time.monotonic()
                try:
                    tasks = queue.read_queue()
                    queue_works_at = time.monotonic()
                except QueueError as error:  # the controller may be restarting
                    if time.monotonic() - queue_works_at > self.timeout:
                        cells.clear()  # the jobs go on
                        raise UserError(f"{error}; run the same command later to resume") from None
                    tasks = None
                if tasks is not None:
                    self._check_queue(cells, tasks, on_event, is_stopping)
            if cells:
                time.sleep(min(FILES_INTERVAL_SECONDS, self.poll_seconds))

    def _check_files(self, cell: _SubmittedCell, on_event: EventHandler) -> bool:
        """Report the progress of a cell; return whether it has a result."""
        result = CellResult.read(cell.job.folder)
        if result is not None and not cell.is_hung:
            on_event(Event(cell.job, "ended", result.step, result.loss, result))
            return True
        progress = Progress.read(cell.batch / PROGRESS / cell.job.name)
        if progress is not None and progress != cell.progress:
            cell.progress, cell.last_seen = progress, time.monotonic()
            cell.progress_time = time.monotonic()
            self._begin(cell, on_event)
            on_event(Event(cell.job, "stepped", progress.step, progress.loss))
        elif time.monotonic() - cell.progress_time > self.timeout and not cell.is_hung:
            cell.is_hung = True
            with suppress(QueueError):
                queue.cancel([cell.task])
        return False

    def _check_queue(
        self,
        cells: dict[str, _SubmittedCell],
        tasks: dict[ArrayTask, QueuedTask],
        on_event: EventHandler,
        is_stopping: bool,
    ) -> None:
        """Update which cells wait or run; report those that have left the queue."""
        for name, cell in list(cells.items()):
            queued = tasks.get(cell.task)
            if queued is not None:
                cell.last_seen = time.monotonic()
                if queued.state in STATES_BEFORE_RUN:
                    self._wait_in_queue(cell, queued.reason or queued.state, on_event)
                else:
                    self._begin(cell, on_event)
                continue
            is_lost = time.monotonic() - cell.last_seen > self.lost_seconds
            if is_lost or is_stopping or cell.is_hung or _has_paused(cell):
                if not self._check_files(cell, on_event):  # it may have ended in between
                    _report_end(cell, on_event, is_stopping)
                del cells[name]

    def _wait_in_queue(self, cell: _SubmittedCell, reason: str, on_event: EventHandler) -> None:
        cell.progress_time = math.inf  # requeued
        if reason != cell.wait_reason:
            cell.has_begun, cell.wait_reason = False, reason
            on_event(Event(cell.job, "waiting", reason=reason))

    def _begin(self, cell: _SubmittedCell, on_event: EventHandler) -> None:
        if not cell.has_begun:
            cell.has_begun, cell.wait_reason = True, ""
            on_event(Event(cell.job, "began"))


def _job_name(batch: Path) -> str:
    """Return the name of an array job in the queue, which tells its folder."""
    digest = hashlib.sha256(str(batch.parent.parent.resolve()).encode()).hexdigest()[:8]
    return f"addnorm-{digest}-{batch.name}"


def _make_batch_folder(root: Path) -> Path:
    numbers = [int(path.name) for path in (root / files.SLURM).glob("[0-9]*")]
    batch = root / files.SLURM / f"{max(numbers, default=0) + 1:03d}"
    batch.mkdir(parents=True)
    return batch


def _has_paused(cell: _SubmittedCell) -> bool:
    """Return whether a cell has reached the step at which it pauses for halving."""
    pause_step, progress = cell.job.pause_step, cell.progress
    return pause_step is not None and progress is not None and progress.step >= pause_step


def _report_end(cell: _SubmittedCell, on_event: EventHandler, is_stopping: bool) -> None:
    """Report a cell that has left the queue without a result."""
    if not cell.is_hung and (is_stopping or _has_paused(cell)):
        on_event(Event(cell.job, "paused"))
        return
    reason = "hung: no progress within the timeout"
    if not cell.is_hung:
        end = queue.find_end(cell.task)
        if end.exit_code == DISK_FULL_EXIT_CODE:
            raise DiskFullError(
                f"cannot write to {cell.job.folder}: the disk is full or read-only; free disk "
                "space and rerun the same command to resume"
            )
        reason = f"SLURM job {cell.task} ended without a result"
        reason += f" ({end.state}, exit code {end.exit_code})" if end.state else ""
        log = cell.batch / f"{cell.task.position}.log"
        reason += f"; see {log}" if log.exists() else "; do the nodes see this folder?"
    result = CellResult("crashed", reason)
    cell.job.folder.mkdir(parents=True, exist_ok=True)
    result.save(cell.job.folder)
    on_event(Event(cell.job, "ended", end=result))
