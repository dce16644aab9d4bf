#!/usr/bin/env python3
"""A small SLURM for tests: sbatch, squeue, scancel and scontrol that really run batch scripts.

The name under which the file is called selects the command; `SLURM_STUB` names its state folder. As
in SLURM, canceling or requeueing a task sends SIGTERM to all its processes and,
when it is canceled, SIGKILL later;
`--signal=B:USR1` reaches the script only, here on request (`scontrol warn`).
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ.get("SLURM_STUB", "."))
KILL_WAIT_SECONDS = 10


def sbatch(arguments):
    options, script = [a for a in arguments if a.startswith("-")], Path(arguments[-1])
    text = script.read_text()
    directives = dict(
        line.removeprefix("#SBATCH --").partition("=")[::2]
        for line in text.splitlines()
        if line.startswith("#SBATCH --")
    )
    number = str(len(list(STATE.glob("*.script"))) + 1)
    (STATE / f"{number}.script").write_text(text)  # SLURM keeps a copy, too
    first, last, limit = re.fullmatch(r"(\d+)-(\d+)(?:%(\d+))?", directives["array"]).groups()
    for index in range(int(first), int(last) + 1):
        write_task(number, index, state="PENDING", name=directives["job-name"], restarts=0)
    output = directives["output"].strip('"').replace("%%", "%")
    subprocess.Popen(
        [sys.executable, __file__, "run", number, output, limit or "99"],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    print(number if "--parsable" in options else f"Submitted batch job {number}")


def squeue(arguments):
    assert "--format=%F|%K|%T|%r|%j" in arguments
    for number, index, task in read_tasks():
        if task["state"] in ("PENDING", "RUNNING", "COMPLETING"):
            print(f"{number}|{index}|{task['state']}|None|{task['name']}")


def scancel(names):
    for number, index, task in read_tasks():
        if f"{number}_{index}" in names:
            if task["state"] == "PENDING":
                write_task(number, index, **task | {"state": "CANCELLED"})
            elif task["state"] == "RUNNING":
                end = {"state": "COMPLETING", "end": "CANCELLED", "time": time.time()}
                write_task(number, index, **task | end)
                signal_task(task, signal.SIGTERM)


def scontrol(arguments):
    command, names = arguments[0], [a for a in arguments[1:] if "_" in a]
    for number, index, task in read_tasks():
        if f"{number}_{index}" not in names:
            continue
        if command == "requeue":
            write_task(number, index, **task | {"state": "COMPLETING", "end": "PENDING"})
            signal_task(task, signal.SIGTERM)
        elif command == "warn":  # what `--signal=B:USR1@120` does
            os.kill(task["pid"], signal.SIGUSR1)
        elif command == "show":
            print(f"JobId={number} JobState={task['state']} ExitCode={task.get('code', 0)}:0")


def run(number, output, limit):
    """Run the tasks of an array job; the process of the stub's controller and nodes."""
    running = {}
    while True:
        tasks = {index: task for job, index, task in read_tasks() if job == number}
        for index, process in list(running.items()):
            if time.time() > tasks[index].get("time", time.time()) + KILL_WAIT_SECONDS:
                signal_task(tasks[index], signal.SIGKILL)
            if process.poll() is not None:
                del running[index]
                state = tasks[index].get("end") or ("FAILED" if process.returncode else "COMPLETED")
                code = abs(process.returncode)
                write_task(
                    number, index, **tasks[index] | {"state": state, "code": code, "end": None}
                )
        tasks = {index: task for job, index, task in read_tasks() if job == number}
        waiting = [i for i, task in sorted(tasks.items()) if task["state"] == "PENDING"]
        for index in waiting[: int(limit) - len(running)]:
            running[index] = start(number, index, tasks[index], output)
        if not running and not waiting:
            return
        time.sleep(0.1)


def start(number, index, task, output):
    environment = os.environ | {
        "SLURM_ARRAY_JOB_ID": number,
        "SLURM_ARRAY_TASK_ID": str(index),
        "SLURM_JOB_ID": str(int(number) * 1000 + index),
        "SLURM_RESTART_COUNT": str(task["restarts"]),
        "SLURM_CPUS_PER_TASK": "1",
    }
    with open(output.replace("%a", str(index)), "a") as log:
        process = subprocess.Popen(
            ["bash", str(STATE / f"{number}.script")],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    restarts = task["restarts"] + 1
    write_task(
        number, index, **task | {"state": "RUNNING", "pid": process.pid, "restarts": restarts}
    )
    return process


def signal_task(task, number):
    """Signal all processes of a task, as SLURM does: those of its session and their children."""
    pids, found = {task["pid"]}, True
    while found:
        found = False
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                pid, parent = (
                    int(stat.parent.name),
                    int(stat.read_text().rpartition(")")[2].split()[1]),
                )
            except (OSError, ValueError):
                continue
            if parent in pids and pid not in pids and pid != os.getpid():
                pids.add(pid)
                found = True
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def read_tasks():
    for path in sorted(STATE.glob("*.task")):
        number, index = path.stem.split("_")
        yield number, int(index), json.loads(path.read_text())


def write_task(number, index, **task):
    path = STATE / f"{number}_{index}.task"
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(task))
    temporary.replace(path)


if __name__ == "__main__":
    command = Path(sys.argv[0]).name if sys.argv[1] != "run" else "run"
    commands = {"sbatch": sbatch, "squeue": squeue, "scancel": scancel, "scontrol": scontrol}
    if command == "run":
        run(*sys.argv[2:])
    else:
        commands[command](sys.argv[1:])
