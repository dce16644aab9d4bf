"""The SLURM engine, against a stub that really runs the scripts."""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.comparison.callbacks import ComparisonCallback
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.engines import cell_process, slurm
from addnorm.comparison.engines import slurm_queue as queue
from addnorm.comparison.engines.base import Event
from addnorm.comparison.engines.job_files import Progress, read_job, write_jobs
from addnorm.comparison.engines.local import LocalEngine
from addnorm.comparison.engines.slurm import SlurmEngine
from addnorm.comparison.engines.slurm_queue import ArrayTask, QueuedTask, QueueError
from addnorm.comparison.engines.slurm_script import SlurmOptions
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import preview_jobs, run_comparison
from addnorm.comparison.run_cell import PAUSED_EXIT_CODE
from addnorm.comparison.tasks.function_registry import FUNCTIONS
from addnorm.core.errors import UserError
from addnorm.core.interrupts import StopFlag
from tests.comparison.engines.test_engines import Hook, rows_of, tiny

STUB = Path(__file__).with_name("stub_slurm.py")


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Put the stub's commands on the PATH; return its state folder."""
    commands, state = tmp_path / "bin", tmp_path / "state"
    for folder in (commands, state):
        folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        script = commands / name
        script.write_text(f"#!{sys.executable}\n{STUB.read_text()}")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STUB", str(state))
    return state


def make_engine(**values):
    options = SlurmOptions(**values.pop("options", {}))
    return SlurmEngine(options=options, poll_seconds=0.5, lost_seconds=5.0, **values)


def test_changed_jobs_are_not_unpickled(tmp_path):
    jobs = preview_jobs(tiny(), tmp_path)
    checksum = write_jobs(tmp_path / "jobs.pickle", jobs)
    assert read_job(tmp_path / "jobs.pickle", checksum, 0) == jobs[0]
    with pytest.raises(UserError, match="expected a cell from 0 to 0, got 1"):
        read_job(tmp_path / "jobs.pickle", checksum, 1)
    (tmp_path / "jobs.pickle").write_bytes(b"cos\nsystem\n(S'touch /tmp/harm'\ntR.")
    with pytest.raises(UserError, match="has changed since its jobs were submitted"):
        read_job(tmp_path / "jobs.pickle", checksum, 0)


@pytest.mark.parametrize("text", ["", "3", "x 1.0 2.0", "3 1.0 nan", "-1 1.0 2.0", "3 1.0 2.0 4"])
def test_damaged_progress_is_no_progress(tmp_path, text):
    (tmp_path / "progress").write_text(text)
    assert Progress.read(tmp_path / "progress") is None
    Progress(3, 1.5, 2.0).write(tmp_path / "progress")
    assert Progress.read(tmp_path / "progress") == Progress(3, 1.5, 2.0)


def fake_command(folder, name, text, monkeypatch):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize("output", ["12", "12;cluster", "Submitted batch job 12"])
def test_number_of_a_job_is_read(tmp_path, monkeypatch, output):
    fake_command(tmp_path / "bin", "sbatch", f"echo '{output}'", monkeypatch)
    assert queue.submit(tmp_path / "job.sh") == "12"


def test_refusal_of_sbatch_is_one_line(tmp_path, monkeypatch):
    text = "echo 'sbatch: error: invalid partition' >&2; echo more >&2; exit 1"
    fake_command(tmp_path / "bin", "sbatch", text, monkeypatch)
    with pytest.raises(QueueError, match=r"^sbatch: invalid partition; more$"):
        SlurmEngine().run(preview_jobs(tiny(), tmp_path), print, StopFlag())


def test_missing_slurm_is_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="requires the command sbatch; run it on a login node"):
        SlurmEngine().run(preview_jobs(tiny(), tmp_path), print, StopFlag())


def test_lines_of_other_jobs_are_ignored(tmp_path, monkeypatch):
    lines = "7|N/A|RUNNING|shell", "8|2|PENDING|Priority|a|b", "../..|1|RUNNING|x", "9|-1|RUNNING|x"
    text = "\n".join(f"echo '{line}'" for line in lines)
    fake_command(tmp_path / "bin", "squeue", text, monkeypatch)
    assert queue.read_queue() == {ArrayTask("8", 2): QueuedTask("a|b", "PENDING", "Priority")}


def run_with_states(tmp_path, monkeypatch, states, *, timeout=600.0, pause_step=None, result=None):
    """Run one cell on a queue that reports a list of states, then nothing; return the events."""
    job = replace(preview_jobs(tiny(), tmp_path)[0], pause_step=pause_step)
    states, canceled, events = iter(states), [], list[Event]()

    def read_queue():
        state = next(states, "")
        if result is not None and not state:
            result.save(job.folder)
        return {ArrayTask("5", 0): QueuedTask("", state, "Resources")} if state else {}

    monkeypatch.setattr(queue, "submit", lambda script: "5")
    monkeypatch.setattr(queue, "read_queue", read_queue)
    monkeypatch.setattr(queue, "cancel", lambda tasks: canceled.extend(tasks))
    monkeypatch.setattr(queue, "find_end", lambda task: queue.JobEnd("OUT_OF_MEMORY", 137))
    engine = SlurmEngine(poll_seconds=0.01, lost_seconds=0.05, timeout=timeout)
    job.folder.mkdir(parents=True)
    engine.run([job], events.append, StopFlag())
    return events, canceled


def test_job_that_vanishes_is_a_crash(tmp_path, monkeypatch):
    events, _ = run_with_states(tmp_path, monkeypatch, ["PENDING", "RUNNING", "COMPLETING"])
    assert [event.kind for event in events] == ["waiting", "began", "ended"]
    assert events[0].reason == "Resources"
    assert events[-1].end.ending == "crashed"
    assert "SLURM job 5_0 ended without a result (OUT_OF_MEMORY" in events[-1].end.why


def test_requeued_job_is_waited_for(tmp_path, monkeypatch):
    states = ["RUNNING", *["PENDING"] * 20, "RUNNING"]  # waits longer than lost_seconds
    done = CellResult("done", step=4, loss=1.0)
    events, canceled = run_with_states(tmp_path, monkeypatch, states, result=done)
    assert [event.kind for event in events] == ["began", "waiting", "began", "ended"]
    assert events[-1].end == done
    assert canceled == []


def test_job_that_vanishes_before_its_first_step_is_a_crash(tmp_path, monkeypatch):
    progress = tmp_path / "slurm/001/progress"
    progress.mkdir(parents=True)
    monkeypatch.setattr(slurm, "_make_batch_folder", lambda root: root / "slurm/001")
    Progress(0, math.nan, 1.0).write(progress / preview_jobs(tiny(), tmp_path)[0].name)
    events, _ = run_with_states(tmp_path, monkeypatch, ["RUNNING"])
    assert [event.kind for event in events] == ["began", "stepped", "ended"]
    assert events[-1].end.ending == "crashed"


class RecordingEngine(SlurmEngine):
    """Engine that keeps the jobs, with their data prepared, and runs none."""

    def run(self, jobs, on_event, stop_flag):
        self.jobs = list(jobs)


@pytest.mark.parametrize("task", ["translate", "function"])
def test_last_step_of_a_paused_cell_is_written(tmp_path, monkeypatch, request, task):
    monkeypatch.setattr(cell_process, "ignore_repeated_signals", lambda: None)
    known = dict(FUNCTIONS)
    request.addfinalizer(lambda: (FUNCTIONS.clear(), FUNCTIONS.update(known)))
    (tmp_path / "mystudy.py").write_text(STUDY)
    spec = tiny(steps=8)
    if task == "function":
        mine = {"task": f"{tmp_path}/mystudy.py:train", "axes": {"fate": ["good"]}, "lr": 1e-3}
        spec = parse_comparison(mine | {"seeds": 1})
    engine = RecordingEngine()
    run_comparison(spec, tmp_path / "study", engine=engine)
    checksum = write_jobs(tmp_path / "jobs", [replace(engine.jobs[0], pause_step=3)])
    arguments = [str(tmp_path / "jobs"), checksum, "0", str(tmp_path / "progress")]
    assert cell_process.main(arguments) == PAUSED_EXIT_CODE
    assert Progress.read(tmp_path / "progress").step == 3


@pytest.mark.slow  # each cell is a process that imports torch
def test_stub_reproduces_local_rows(stub, tmp_path):
    spec = tiny(wiring="pre_ln,b2t", steps=6)
    local = run_comparison(spec, tmp_path / "local", engine=LocalEngine(workers=1))
    study = run_comparison(spec, tmp_path / "a study", engine=make_engine(workers=1))
    assert rows_of(tmp_path / "a study") == rows_of(tmp_path / "local")
    assert [each.loss for each in study.cells] == [each.loss for each in local.cells]
    assert not list(tmp_path.glob("a study/cells/*/checkpoints"))
    run_comparison(spec, tmp_path / "a study", engine=make_engine())  # submits nothing
    assert len(list(stub.glob("*.script"))) == 1


class SignalOnce(ComparisonCallback):
    """Callback that runs a command of the stub after some steps of each cell."""

    def __init__(self, *command, step=20):
        self.command, self.step, self.tasks = command, step, set()

    def on_cell_event(self, event):
        if event.kind == "stepped" and event.step >= self.step and event.job.name not in self.tasks:
            self.tasks.add(event.job.name)
            subprocess.run([*self.command, self.find_task(event)], check=True)

    def find_task(self, event):
        """Return the task of the cell; the stub's first job has one."""
        return "1_0"


@pytest.mark.slow
@pytest.mark.parametrize("command", [["requeue"], ["warn"]], ids=["preempted", "time limit"])
def test_requeued_cell_resumes_from_its_checkpoint(stub, tmp_path, command):
    spec = tiny(steps=300, save_every=1000)
    run_comparison(spec, tmp_path / "local", engine=LocalEngine(workers=1))
    callback = SignalOnce("scontrol", *command)
    study = run_comparison(spec, tmp_path / "slurm", engine=make_engine(), callback=callback)
    assert callback.tasks
    assert [each.end.ending for each in study.cells] == ["done"]
    (rows,) = rows_of(tmp_path / "slurm").values()
    (expected,) = rows_of(tmp_path / "local").values()
    pauses = [row for row in rows if row.get("ending") == "interrupted"]
    assert len(pauses) == 1 and pauses[0]["step"] >= 20  # it did not start over
    assert [row for row in rows if row not in pauses] == expected
    assert '"restarts": 2' in (stub / "1_0.task").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_halving_continues_the_better_settings(stub, tmp_path, processes):
    spec = tiny(mode="halving", lr="1e-5,1e-2", steps=2, task="lm")  # one halving, at step 1
    engine = make_engine(options={"gpus_per_cell": processes})
    study = run_comparison(spec, tmp_path / "slurm", engine=engine)
    assert sorted(each.end.ending for each in study.cells) == ["cut", "done"]
    assert sorted(each.end.step for each in study.cells) == [1, 2]


@pytest.mark.slow
def test_interruption_cancels_jobs_and_resumes(stub, tmp_path):
    spec = tiny(steps=300, seeds=2)
    messages = []
    hook = Hook(lambda event: os.kill(os.getpid(), signal.SIGINT))
    hook.on_message = messages.append
    start = time.monotonic()
    study = run_comparison(spec, tmp_path / "slurm", engine=make_engine(workers=1), callback=hook)
    assert study.interrupted and not any(each.end for each in study.cells)
    assert messages == ["the jobs of SLURM are canceled; running cells have saved a checkpoint"]
    assert not queue.read_queue()
    assert time.monotonic() - start < 600
    checkpoints = list(tmp_path.glob("slurm/cells/*/checkpoints/*"))
    assert checkpoints
    study = run_comparison(spec, tmp_path / "slurm", engine=make_engine())
    assert [each.end.ending for each in study.cells] == ["done", "done"]


@pytest.mark.slow
def test_jobs_outlive_the_command_and_are_found_again(stub, tmp_path):
    arguments = "compare --task translate --wiring pre_ln --depth 1 --lr 1e-3 --steps 400 --seeds 1"
    arguments += " --score 0 --engine slurm dim=8 heads=2 batch_tokens=256"
    command = [sys.executable, "-m", "addnorm", *arguments.split(), "-o", str(tmp_path / "slurm")]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("slurm/slurm/001/progress/*")):
        assert first.poll() is None
        time.sleep(0.2)
    first.kill()
    first.wait()
    second = subprocess.run(command, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert len(list(stub.glob("*.script"))) == 1  # no second job
    assert CellResult.read(tmp_path / "slurm/cells/pre_ln-d1-w0-lr0.001-s0").ending == "done"


STUDY = """
import os, time, addnorm

@addnorm.task("mine", baseline=2.0)
def train(cell):
    if cell.fate == "crash":
        raise RuntimeError("a planted mistake")
    for step in range(1, 5):
        cell.log(step, train_loss=1.0 / step)
    if cell.fate == "hang":
        time.sleep(1000)
    if cell.fate == "killed":
        os.kill(os.getpid(), 9)
    return {"valid_loss": 0.5, "processes": float(os.environ.get("WORLD_SIZE", 1))}
"""


@pytest.mark.slow
def test_failures_are_results(stub, tmp_path):
    (tmp_path / "mystudy.py").write_text(STUDY)
    modes = ["good", "crash", "hang", "killed"]
    spec = parse_comparison(
        {"task": f"{tmp_path}/mystudy.py:train", "axes": {"fate": modes}, "lr": 1e-3, "seeds": 1}
    )
    study = run_comparison(spec, tmp_path / "slurm", engine=make_engine(timeout=8.0))
    reasons = {dict(each.cell.arm.extras)["fate"]: each.end.why for each in study.cells}
    assert reasons["good"] == ""
    assert reasons["crash"] == "RuntimeError: a planted mistake"
    assert reasons["hang"].startswith("hung")
    assert "(FAILED, exit code 137)" in reasons["killed"]


@pytest.mark.slow
def test_cells_of_several_processes(stub, tmp_path):
    spec = tiny(steps=6, task="lm")
    single = run_comparison(spec, tmp_path / "single", engine=LocalEngine(workers=1))
    engine = make_engine(options={"gpus_per_cell": 2})
    double = run_comparison(spec, tmp_path / "double", engine=engine)
    assert [each.end.ending for each in double.cells] == ["done"]
    assert double.cells[0].loss == pytest.approx(single.cells[0].loss, rel=1e-4)
    assert double.cells[0].end.scores.keys() == single.cells[0].end.scores.keys()

    (tmp_path / "mystudy.py").write_text(STUDY)
    mine = {"task": f"{tmp_path}/mystudy.py:train", "axes": {"fate": ["good"]}, "lr": 1e-3}
    study = run_comparison(parse_comparison(mine | {"seeds": 1}), tmp_path / "mine", engine=engine)
    assert study.cells[0].end.scores["processes"] == 2
    assert study.cells[0].end.step == 4


@pytest.mark.slow
def test_local_cell_of_several_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    spec = tiny(steps=6, task="lm", device="cpu", seeds=2)
    engine = LocalEngine(gpus_per_cell=2)
    study = run_comparison(spec, tmp_path / "double", engine=engine)
    monkeypatch.undo()
    single = run_comparison(spec, tmp_path / "single", engine=LocalEngine(workers=1))
    assert [each.end.ending for each in study.cells] == ["done", "done"]
    for one, other in zip(study.cells, single.cells, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-4)


def test_local_engine_rejects_more_gpus_than_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    engine, jobs = LocalEngine(gpus_per_cell="1,depth=1:4"), preview_jobs(tiny(), tmp_path)
    with pytest.raises(UserError, match="expected at most 2, the GPUs of this machine, got 4"):
        engine.run(jobs, print, StopFlag())


def test_cells_with_several_gpus_do_not_share_them(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    engine = LocalEngine(gpus_per_cell=2)

    def running(*gpus):
        return type("Running", (), {"gpus": gpus})()

    assert engine._find_gpus(2, []) == (0, 1)
    assert engine._find_gpus(2, [running(0, 1)]) == (2, 3)
    assert engine._find_gpus(2, [running(0, 1), running(2)]) is None
    assert engine._find_gpus(1, [running(0, 1), running(2, 3)]) == (0,)  # one GPU can be shared
