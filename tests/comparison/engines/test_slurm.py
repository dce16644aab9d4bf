"""The SLURM engine, against a stub that really runs the scripts."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.comparison.callbacks import ComparisonCallback
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.engines import slurm_queue as queue
from addnorm.comparison.engines.base import Event
from addnorm.comparison.engines.cell_options import CellOption
from addnorm.comparison.engines.job_files import Progress, read_job, write_jobs
from addnorm.comparison.engines.local import LocalEngine
from addnorm.comparison.engines.slurm import SlurmEngine
from addnorm.comparison.engines.slurm_queue import ArrayTask, QueueError
from addnorm.comparison.engines.slurm_script import SlurmOptions
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import preview_jobs, run_comparison
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


def scripts_of(jobs, **options):
    engine = SlurmEngine(options=SlurmOptions(**options), workers=3)
    return list(engine.preview_scripts(jobs, Path("/study")).values())


def test_cells_with_the_same_resources_are_one_array():
    jobs = preview_jobs(tiny(wiring="pre_ln,b2t", depth=[1, 2, 4]), Path("/study"))
    scripts = scripts_of(
        jobs,
        gpus_per_cell="0,depth=4:2,depth=2:1",
        time="1:00:00,depth=4:12:00:00",
        memory="8G,wiring=b2t:9G",
        partition="gpu",
        sbatch=("--account=lab", "-C a100"),
        setup=("module load cuda",),
    )
    assert len(scripts) == 6  # three depths by two memories
    assert all("#SBATCH --array=0-0%3" in script for script in scripts)
    by_gpus = {re.search(r"gpus-per-node=(\d)", s)[1] if "gpus-per" in s else "0" for s in scripts}
    assert by_gpus == {"0", "1", "2"}
    for script in scripts:
        assert ("torch.distributed.run" in script) == ("--gpus-per-node=2" in script)
        assert ("--time=12:00:00" in script) == ("--gpus-per-node=2" in script)
        assert "\nmodule load cuda\n" in script
        lines = [line for line in script.splitlines() if line.startswith("#SBATCH")]
        assert {"#SBATCH --account=lab", "#SBATCH -C a100", "#SBATCH --partition=gpu"} <= {*lines}
        # Directives after the first command are ignored by sbatch.
        assert script.startswith("#!/bin/bash\n" + "\n".join(lines) + "\n\n")


def test_script_is_valid_bash_and_quotes_paths():
    jobs = preview_jobs(tiny(), Path("/my study/100%"))
    engine = SlurmEngine()
    (script,) = engine.preview_scripts(jobs, Path("/my study/it's 100%")).values()
    assert '#SBATCH --output="/my study/it\'s 100%%/slurm/001/%a.log"' in script
    check = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (check.returncode, check.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sbatch": ("account=lab",)}, "sbatch: expected an option of sbatch"),
        ({"sbatch": ("--array=0-3",)}, "which is set already"),
        ({"sbatch": ("-J name",)}, "which is set already"),
        ({"sbatch": ("--account=lab\nrm -r x",)}, "sbatch: expected an option of sbatch"),
        ({"setup": ("a\nb",)}, "setup: expected one line"),
        ({"partition": "a b"}, "partition: expected a value without spaces"),
        ({"time": "1:00:00\n"}, "time: expected a value without spaces"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        SlurmOptions(**options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("depth=4:2", "expected one value"),
        ("1,2", "expected one value"),
        ("", "expected one value"),
        ("1,width=4:2", "expected an axis of the comparison, such as depth, got 'width'"),
        ("two", "expected an integer of 0 or more, got 'two'"),
        ("-1", "expected an integer of 0 or more, got '-1'"),
    ],
)
def test_invalid_gpus_per_cell_is_rejected(text, message):
    with pytest.raises(UserError, match=message):
        scripts_of(preview_jobs(tiny(), Path("/study")), gpus_per_cell=text)


def test_first_exception_that_fits_counts():
    option = CellOption.parse("memory", "1G, lr=1e-3:2G, depth=4:3G, wiring=pre_ln:4G")
    assert option.value_for({"depth": 4, "lr": 0.001, "wiring": "b2t"}) == "2G"
    assert option.value_for({"depth": 4, "lr": 0.002, "wiring": "pre_ln"}) == "3G"
    assert option.value_for({"depth": 2, "lr": 0.002, "wiring": "pre_ln"}) == "4G"
    assert option.value_for({"depth": 2, "lr": 0.002, "wiring": "b2t"}) == "1G"


def test_tables_train_in_one_process(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    spec = parse_comparison({"task": "table", "data": str(tmp_path / "t.csv"), "target": "b"})
    job = preview_jobs(spec, tmp_path)[0]
    with pytest.raises(UserError, match="expected 1 for task table"):
        SlurmOptions(gpus_per_cell=2).find_resources(job)


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
    with pytest.raises(QueueError, match="sbatch: sbatch: error: invalid partition more"):
        SlurmEngine().run(preview_jobs(tiny(), tmp_path), print, StopFlag())


def test_missing_slurm_is_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="requires the command sbatch; run it on a login node"):
        SlurmEngine().run(preview_jobs(tiny(), tmp_path), print, StopFlag())


def test_lines_of_other_jobs_are_ignored(tmp_path, monkeypatch):
    text = "printf '7|N/A|RUNNING|shell\\n8|2|PENDING|a|b\\n../..|1|RUNNING|x\\n9|-1|RUNNING|x\\n'"
    fake_command(tmp_path / "bin", "squeue", text, monkeypatch)
    assert queue.read_queue() == {ArrayTask("8", 2): ("a|b", "PENDING")}


def run_with_states(tmp_path, monkeypatch, states, *, timeout=600.0, pause_step=None, result=None):
    """Run one cell on a queue that reports a list of states, then nothing; return the events."""
    job = replace(preview_jobs(tiny(), tmp_path)[0], pause_step=pause_step)
    states, canceled, events = iter(states), [], list[Event]()

    def read_queue():
        state = next(states, "")
        if result is not None and not state:
            result.save(job.folder)
        return {ArrayTask("5", 0): ("", state)} if state else {}

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
    assert [event.kind for event in events] == ["began", "ended"]
    assert events[-1].end.ending == "crashed"
    assert "SLURM job 5_0 ended without a result (OUT_OF_MEMORY" in events[-1].end.why


def test_requeued_job_is_waited_for(tmp_path, monkeypatch):
    states = ["RUNNING", *["PENDING"] * 20, "RUNNING"]  # waits longer than lost_seconds
    done = CellResult("done", step=4, loss=1.0)
    events, canceled = run_with_states(tmp_path, monkeypatch, states, result=done)
    assert [event.kind for event in events] == ["began", "ended"]
    assert events[-1].end == done
    assert canceled == []


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
            index = len(self.tasks)
            self.tasks.add(event.job.name)
            subprocess.run([*self.command, f"1_{index}"], check=True)


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
