"""Batch scripts for SLURM: an array job, of which each task trains one cell."""

import re
import shlex
import sys
from dataclasses import dataclass
from os import environ
from pathlib import Path

from addnorm.comparison.cell_job import Job
from addnorm.comparison.engines.cell_options import CellOption
from addnorm.comparison.engines.torchrun import check_processes, make_cell_command
from addnorm.core.errors import UserError

SCRIPT, NAMES, JOBS, PROGRESS = "job.sh", "cells.txt", "jobs.pickle", "progress"
"""Files in the folder of an array job: the script, the cells, their jobs; a folder of progress."""
WARNING_SECONDS = 120
"""How long before its time limit a job is told to save and requeue itself."""
MIN_TIME_SECONDS = 300
"""Shortest time limit: SLURM may warn a minute early, and a cell must get beyond its start."""
RESERVED_OPTIONS = (
    *("array", "job-name", "output", "error", "chdir", "signal", "ntasks", "wrap"),
    *("a", "J", "o", "e", "D", "n"),
)
"""Options of sbatch that the script sets itself."""
TEMPLATE = """\
#!/bin/bash
{directives}

# Each task of this array trains one cell: task N the cell in line N + 1 of {names}.
# Run `addnorm compare` again to collect results, or to resume what was interrupted.
folder={folder}
cell=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" "$folder"/{names})
cd {working_folder} || exit 1
export OMP_NUM_THREADS=$(( ${{SLURM_CPUS_PER_TASK:-{processes}}} / {processes} ))
{setup}
# scancel, preemption: SLURM sends SIGTERM to all processes. The cell saves a checkpoint and ends.
trap : TERM
# {warning} s before the time limit: save a checkpoint, end, and queue again.
trap 'requeue=yes; kill -TERM "$worker"' USR1

{command} \\
  "$folder"/{jobs} {checksum} \\
  "$SLURM_ARRAY_TASK_ID" "$folder"/{progress}/"$cell" >> "$folder"/../../cells/"$cell".log 2>&1 &
worker=$!
wait "$worker"; code=$?
while kill -0 "$worker" 2> /dev/null; do wait "$worker"; code=$?; done  # a trap interrupts wait

if [ "$requeue" = yes ] && [ ! -e "$folder"/../../cells/"$cell".json ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
"""


@dataclass(frozen=True)
class Resources:
    """What SLURM allocates for a cell; cells with the same resources are one array job."""

    gpus: int
    time: str
    memory: str


@dataclass(frozen=True)
class SlurmOptions:
    """Options of the jobs. Those marked with * may differ between cells; see `CellOption`."""

    gpus_per_cell: int | str = 0
    """* GPUs; with two or more, `torchrun` starts a process for each."""
    time: str = ""
    """* Time limit, such as 4:00:00. A cell that reaches it continues in the same job later."""
    memory: str = ""
    """* Memory, such as 16G."""
    partition: str = ""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch, such as --account=lab."""
    setup: tuple[str, ...] = ()
    """Shell commands to run before the cell, such as `module load cuda`."""

    def __post_init__(self) -> None:
        for name in ("time", "memory", "partition"):
            value = getattr(self, name)
            if re.search(r"\s", value):
                raise UserError(f"{name}: expected a value without spaces, got {value!r}")
        for option in self.sbatch:
            match = re.fullmatch(r"(?:--([\w-]+)|-(\w))([ =].*)?", option)
            if match is None or "\n" in option:
                raise UserError(
                    f"sbatch: expected an option of sbatch, such as --account=lab, got {option!r}"
                )
            if (match[1] or match[2]) in RESERVED_OPTIONS:
                raise UserError(
                    f"sbatch: expected another option, got {option!r}, which is set already; leave "
                    "it out"
                )
        for command in self.setup:
            if "\n" in command or not command.strip():
                raise UserError(f"setup: expected one line with a command, got {command!r}")

    def find_resources(self, job: Job) -> Resources:
        """Return the resources of a cell."""
        settings = job.recipe.to_flat_dict()
        gpus = CellOption.parse("gpus_per_cell", self.gpus_per_cell).count_for(settings)
        check_processes(job, gpus)
        time, memory = (
            CellOption.parse(name, value).value_for(settings) if value else ""
            for name, value in (("time", self.time), ("memory", self.memory))
        )
        if time:
            check_time_limit(time)
        return Resources(gpus, time, memory)


def check_time_limit(text: str) -> None:
    """Raise `UserError` unless the text is a time limit in which a cell can get anywhere.

    >>> check_time_limit("2:00:00")
    """
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return
    match = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", text, re.ASCII)
    if match is None:
        raise UserError(
            f"time: expected a time limit such as 4:00:00 (hours:minutes:seconds), got {text!r}"
        )
    numbers = [int(number) for number in match[2].split(":")]
    # As in SLURM: 5 is minutes and 5:00 minutes:seconds, but 1-5 days-hours.
    units = (3600, 60, 1) if match[1] or len(numbers) == 3 else (60, 1)
    seconds = 86400 * int(match[1] or 0)
    seconds += sum(unit * number for unit, number in zip(units, numbers, strict=False))
    if 0 < seconds < MIN_TIME_SECONDS:  # 0 means no limit
        raise UserError(
            f"time: expected {MIN_TIME_SECONDS // 60} minutes or more, because cells save and "
            f"queue again {WARNING_SECONDS // 60} minutes before the limit, got {text!r}"
        )


def make_script(
    folder: Path,
    job_name: str,
    *,
    options: SlurmOptions,
    resources: Resources,
    num_cells: int,
    workers: int | None,
    checksum: str,
) -> str:
    """Return the script of an array job.

    Args:
        folder: folder of the array job, in that of the comparison
        job_name: name of the job, by which the engine finds it in the queue
        options: options of the user
        resources: what each cell gets
        num_cells: number of cells
        workers: cells at the same time; None leaves it to SLURM
        checksum: SHA-256 of the file of the jobs
    """
    limit, processes = f"%{workers}" if workers else "", max(1, resources.gpus)
    directives = {
        "job-name": job_name,
        "array": f"0-{num_cells - 1}{limit}",
        "output": _quote(f"{str(folder).replace('%', '%%')}/%a.log"),
        "open-mode": "append",
        "requeue": None,
        "signal": f"B:USR1@{WARNING_SECONDS}",
        "ntasks": "1",
        "cpus-per-task": str(processes),
        "partition": options.partition or False,
        "time": resources.time or False,
        "mem": resources.memory or False,
        "gpus-per-node": str(resources.gpus) if resources.gpus else False,
    }
    lines = [
        f"#SBATCH --{name}" if value is None else f"#SBATCH --{name}={value}"
        for name, value in directives.items()
        if value is not False
    ]
    python_path = environ.get("PYTHONPATH")
    setup = [f"export PYTHONPATH={shlex.quote(python_path)}"] if python_path else []
    return TEMPLATE.format(
        processes=processes,
        directives="\n".join([*lines, *(f"#SBATCH {option}" for option in options.sbatch)]),
        folder=shlex.quote(str(folder)),
        working_folder=shlex.quote(str(Path.cwd())),
        setup="".join(f"{line}\n" for line in [*setup, *options.setup]),
        command=shlex.join(make_cell_command(resources.gpus, sys.executable)),
        warning=WARNING_SECONDS,
        names=NAMES,
        jobs=JOBS,
        progress=PROGRESS,
        checksum=checksum,
    )


def _quote(path: str) -> str:
    """Return a path as a directive needs it; sbatch knows double quotes, not shell quoting."""
    return f'"{path}"' if re.search(r"\s", path) else path
