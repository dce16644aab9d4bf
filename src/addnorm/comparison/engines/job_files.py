"""Files by which an engine and the processes of its cells exchange jobs and progress.

Jobs are pickled, as classes of a script or notebook can only be sent that way. The reader receives
the checksum of the file on its command line and unpickles nothing else.
"""

import hashlib
import math
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from addnorm.comparison.cell_job import Job
from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write


def write_jobs(path: Path, jobs: Sequence[Job]) -> str:
    """Write jobs to a file; return its SHA-256."""
    # As in a child process: modules that this process can import, the other one can.
    search_path = [str(Path(entry).absolute()) for entry in sys.path]
    data = pickle.dumps((search_path, [pickle.dumps(job) for job in jobs]))
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def read_job(path: Path, checksum: str, index: int) -> Job:
    """Read one job of a file.

    Raises:
        UserError: the file was changed since it was written, or has no such job
    """
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != checksum:
        raise UserError(f"{path} has changed since its jobs were submitted; run the command again")
    search_path, jobs = pickle.loads(data)
    if not 0 <= index < len(jobs):
        raise UserError(f"{path}: expected a cell from 0 to {len(jobs) - 1}, got {index}")
    sys.path += [entry for entry in search_path if entry not in sys.path]
    job: Job = pickle.loads(jobs[index])
    return job


@dataclass(frozen=True)
class Progress:
    """Progress of a cell."""

    step: int
    loss: float = field(compare=False)
    """Training loss; not compared, because it is NaN before the first step, and NaN != NaN."""
    time: float
    """When the process wrote it, by its own clock."""

    def write(self, path: Path) -> None:
        """Replace the file of the progress."""
        # Not atomic_write: progress may be lost, and flushing it to disk would slow the training.
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(f"{self.step} {self.loss!r} {self.time!r}\n")
        temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> "Progress | None":
        """Read the progress; return None if there is none, or no readable one."""
        try:
            step, loss, time = path.read_text().split()
            progress = cls(int(step), float(loss), float(time))
        except (OSError, ValueError):
            return None
        return progress if progress.step >= 0 and math.isfinite(progress.time) else None
