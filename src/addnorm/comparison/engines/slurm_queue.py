"""The commands of SLURM: sbatch, squeue, scancel, scontrol."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from addnorm.core.errors import UserError

COMMAND_TIMEOUT_SECONDS = 120


class QueueError(UserError):
    """A command of SLURM failed."""


class ArrayTask(NamedTuple):
    """One task of an array job."""

    job: str
    """Number of the array job."""
    position: int
    """Number of the task in its array."""

    def __str__(self) -> str:
        return f"{self.job}_{self.position}"


class QueuedTask(NamedTuple):
    """What the queue says about a task."""

    name: str
    """Name of its array job."""
    state: str
    """Such as PENDING or RUNNING."""
    reason: str = ""
    """Why it waits, such as Resources or PartitionConfig."""


class JobEnd(NamedTuple):
    """How a job ended, as far as SLURM still knows it."""

    state: str
    """Such as TIMEOUT, OUT_OF_MEMORY, NODE_FAIL, CANCELLED; empty if it is not known."""
    exit_code: int


def submit(script: Path) -> str:
    """Submit a script; return the number of the job."""
    output = _run("sbatch", "--parsable", str(script))
    # `--parsable` prints "12" or "12;cluster"; wrappers of some sites print the usual sentence.
    match = re.search(r"(?:^|Submitted batch job )(\d+)", output.strip())
    if match is None:
        raise QueueError(f"sbatch: expected the number of a job, got {output.strip()[:200]!r}")
    return match[1]


def read_queue() -> dict[ArrayTask, QueuedTask]:
    """Return the tasks of array jobs that wait or run, of this user."""
    tasks = {}
    for line in _run(
        "squeue", "--me", "--noheader", "--array", "--format=%F|%K|%T|%r|%j"
    ).splitlines():
        job, index, state, reason, name = (line.strip().split("|", 4) + [""] * 4)[:5]
        if job.isdigit() and index.isdigit():
            tasks[ArrayTask(job, int(index))] = QueuedTask(name, state, reason)
    return tasks


def cancel(tasks: Iterable[ArrayTask]) -> None:
    """Cancel tasks: those that run receive SIGTERM, and SIGKILL after the KillWait of SLURM."""
    names = [str(task) for task in tasks]
    if names:
        _run("scancel", *names)


def find_end(task: ArrayTask) -> JobEnd:
    """Return how a task ended; SLURM forgets it after some minutes."""
    try:
        output = _run("scontrol", "show", "job", str(task), "--oneliner")
    except QueueError:
        return JobEnd("", 0)
    state = re.search(r"JobState=(\w+)", output)
    code = re.search(r"ExitCode=(\d+):", output)
    return JobEnd(state[1] if state else "", int(code[1]) if code else 0)


def _run(command: str, *arguments: str) -> str:
    try:
        return subprocess.run(
            [command, *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_SECONDS,
            # Ctrl-C at the terminal is for the engine.
            start_new_session=True,
        ).stdout
    except FileNotFoundError:
        raise QueueError(
            f"--engine slurm requires the command {command}; run it on a login node of the cluster"
        ) from None
    except subprocess.TimeoutExpired:
        raise QueueError(f"{command}: no answer in {COMMAND_TIMEOUT_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        prefix = re.compile(rf"^(?:{command}: )?(?:error: )?")  # of each line
        lines = (prefix.sub("", line).strip() for line in error.stderr.splitlines())
        text = "; ".join(line for line in lines if line) or f"exit code {error.returncode}"
        raise QueueError(f"{command}: {text[:300]}") from None
