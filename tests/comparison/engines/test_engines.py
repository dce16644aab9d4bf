"""The local engine: resume, crashes, hangs and killed processes."""

import json
import math
import os
import re
import signal
import sys
import threading
import time
from multiprocessing import forkserver
from multiprocessing.spawn import get_preparation_data
from pathlib import Path

import pytest
from safetensors import SafetensorError

from addnorm.comparison.callbacks import ComparisonCallback
from addnorm.comparison.cell_job import Job
from addnorm.comparison.cell_result import CellResult, sidecar_path
from addnorm.comparison.engines import ENGINES, make_engine
from addnorm.comparison.engines.local import LocalEngine, _hide_missing_script
from addnorm.comparison.halving import stop_worse_half
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.comparison.run_cell import DiskFullError, run_cell
from addnorm.comparison.tasks import get_task
from addnorm.core.errors import UserError
from addnorm.core.locks import try_lock
from addnorm.core.rows import read_rows, write_rows
from addnorm.train.trained_run import TrainedRun

TINY = {"depth": 1, "dim": 8, "heads": 2, "lr": 1e-3, "score": 2, "batch_tokens": 256}
TIMED = ("tokens_per_second",)


def tiny(**values):
    return parse_comparison(TINY | {"wiring": "pre_ln", "steps": 4, "seeds": 1} | values)


def rows_of(folder):
    """Return the rows of all cells, without measured times."""
    return {
        path.parent.name: [row for row in read_rows(path) if row["name"] not in TIMED]
        for path in sorted(folder.glob("cells/*/rows.jsonl"))
    }


class Hook(ComparisonCallback):
    """Callback that runs a function after the first step of a cell."""

    def __init__(self, act):
        self.act, self.acted = act, False

    def on_cell_event(self, event):
        if event.kind == "stepped" and event.step and not self.acted:
            self.acted = True
            self.act(event)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def cell_pids(leader=None):
    """Return the pids of cells: children of the fork server of `leader` (default: this process)."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            server = parent_of(name)
            command = Path(f"/proc/{server}/cmdline").read_text()
            if "forkserver" in command and parent_of(server) == (leader or os.getpid()):
                pids.append(int(name))
        except (OSError, ValueError):
            continue
    return pids


def test_second_call_trains_nothing(tmp_path):
    spec = tiny(wiring="pre_ln,rezero")
    study = run_comparison(spec, tmp_path, engine=LocalEngine(workers=2))
    assert [each.end.ending for each in study.cells] == ["done", "done"]
    assert all(each.end.memory > 0 and each.end.rate > 0 for each in study.cells)
    assert all(len(each.end.samples) == 2 and "bleu" in each.end.scores for each in study.cells)
    assert not list(tmp_path.glob("cells/*/checkpoints"))
    assert json.loads((tmp_path / "result.json").read_text())["complete"]

    class FailOnEvent(ComparisonCallback):
        def on_cell_event(self, event):
            raise AssertionError(f"{event.job.name} ran again")

    assert run_comparison(spec, tmp_path, callback=FailOnEvent()).cells == study.cells


@pytest.mark.slow
def test_killed_process_is_a_crash_and_is_retried(tmp_path):
    spec = tiny(steps=400, seeds=2)
    hook = Hook(lambda event: [os.kill(pid, signal.SIGKILL) for pid in cell_pids()[:1]])
    study = run_comparison(spec, tmp_path, engine=LocalEngine(workers=1), callback=hook)
    first, second = study.cells
    assert (first.state, second.end.ending) == ("crashed", "done")
    assert "SIGKILL" in first.end.why
    retried = run_comparison(spec, tmp_path, engine=LocalEngine(workers=1))
    assert [each.end.ending for each in retried.cells] == ["done", "done"]


@pytest.mark.slow
def test_hung_cell_is_killed_after_timeout(tmp_path):
    hook = Hook(lambda event: [os.kill(pid, signal.SIGSTOP) for pid in cell_pids()])
    study = run_comparison(
        tiny(steps=400), tmp_path, engine=LocalEngine(workers=1, timeout=3.0), callback=hook
    )
    assert study.cells[0].state == "crashed"
    assert study.cells[0].end.why.startswith("hung")


@pytest.mark.slow
def test_resume_reproduces_uninterrupted_comparison(tmp_path):
    spec = tiny(steps=60, seeds=2, wiring="post_ln,b2t", save_every=7)
    uninterrupted = run_comparison(spec, tmp_path / "uninterrupted", engine=LocalEngine(workers=2))
    hook = Hook(lambda event: os.kill(os.getpid(), signal.SIGINT))
    resumed = run_comparison(
        spec, tmp_path / "resumed", engine=LocalEngine(workers=2), callback=hook
    )
    assert hook.acted
    assert not resumed.complete
    run_comparison(spec, tmp_path / "resumed", engine=LocalEngine(workers=2))
    expected, actual = rows_of(tmp_path / "uninterrupted"), rows_of(tmp_path / "resumed")
    pauses = [row for rows in actual.values() for row in rows if row.get("ending") == "interrupted"]
    assert pauses or any(each.end for each in resumed.cells)
    for name, rows in actual.items():
        assert [row for row in rows if row.get("ending") != "interrupted"] == expected[name]
    assert [each.loss for each in uninterrupted.cells] == [
        each.loss for each in run_comparison(spec, tmp_path / "resumed").cells
    ]


@pytest.mark.slow
def test_folder_is_locked_while_running(tmp_path):
    spec, errors = tiny(steps=100), []

    def run_in_thread(event):
        def run():
            try:
                run_comparison(spec, tmp_path)
            except UserError as problem:
                errors.append(str(problem))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    study = run_comparison(
        spec, tmp_path, engine=LocalEngine(workers=1), callback=Hook(run_in_thread)
    )
    assert study.complete
    assert errors and "another process is comparing into" in errors[0]


@pytest.mark.slow
def test_cells_exit_when_parent_is_killed(tmp_path):
    code = (
        "from addnorm.comparison.run import run_comparison\n"
        "from addnorm.comparison.parse import parse_comparison\n"
        "if __name__ == '__main__':\n"
        f"    spec = parse_comparison({tiny(steps=5000).to_flat_dict()!r})\n"
        f"    run_comparison(spec, {str(tmp_path / 'runs')!r})\n"
    )
    (tmp_path / "lead.py").write_text(code)
    import subprocess
    import sys

    leader = subprocess.Popen([sys.executable, str(tmp_path / "lead.py")])
    until = time.monotonic() + 600
    while not list((tmp_path / "runs").glob("cells/*/rows.jsonl")) and time.monotonic() < until:
        time.sleep(0.2)
    cells = cell_pids(leader.pid)
    assert cells
    leader.kill()
    leader.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in cells) and time.monotonic() < until:
        time.sleep(0.2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in cells)
    assert not list((tmp_path / "runs").glob("cells/*.json"))  # not finished


def test_halving_trains_the_better_settings_to_the_end(tmp_path):
    spec = tiny(mode="halving", lr="1e-5,1e-4,1e-2,3e-2", steps=16, wiring="pre_ln")
    study = run_comparison(spec, tmp_path, engine=LocalEngine(workers=2))
    ends = {each.cell.lr: each.end for each in study.cells}
    assert sorted(end.ending for end in ends.values()) == ["cut", "cut", "cut", "done"]
    assert sorted(end.step for end in ends.values()) == [4, 4, 8, 16]
    assert ends[1e-5].ending == "cut"
    assert study.summary[0].states["cut"] == 3


@pytest.mark.slow
def test_resumed_halving_stops_the_same_cells(tmp_path):
    spec = tiny(mode="halving", lr="1e-5,1e-4,1e-2,3e-2", steps=40)
    uninterrupted = run_comparison(spec, tmp_path / "uninterrupted", engine=LocalEngine(workers=1))

    class InterruptAfterHalving(ComparisonCallback):
        """Callback that interrupts after the first halving."""

        done = False

        def on_cell_event(self, event):
            if not self.done and event.end is not None and event.end.ending == "cut":
                self.done = True
                os.kill(os.getpid(), signal.SIGINT)

    assert not run_comparison(spec, tmp_path / "resumed", callback=InterruptAfterHalving()).complete
    resumed = run_comparison(spec, tmp_path / "resumed", engine=LocalEngine(workers=1))
    ends = [
        [(each.cell.lr, each.end.ending, each.end.step) for each in study.cells]
        for study in (uninterrupted, resumed)
    ]
    assert ends[0] == ends[1]
    assert sorted(step for _, _, step in ends[0]) == [10, 10, 20, 40]
    assert not list(tmp_path.glob("*/cells/*/checkpoints"))


@pytest.mark.slow
def test_sigterm_of_a_cell_is_a_crash(tmp_path):
    hook = Hook(lambda event: [os.kill(pid, signal.SIGTERM) for pid in cell_pids()])
    study = run_comparison(tiny(steps=400), tmp_path, engine=LocalEngine(workers=1), callback=hook)
    assert study.cells[0].state == "crashed"
    assert "SIGTERM" in study.cells[0].end.why


def test_halving_ranks_diverged_cells_last(tmp_path):
    spec = tiny(mode="halving", lr="1e-4,1e-3,1e-2,1e-1", steps=40)
    for cell, loss, ending in zip(
        spec.cells(), (2.0, 2.1, 0.1, 0.2), ("", "", "diverged", "diverged"), strict=True
    ):
        own = tmp_path / "cells" / cell.name
        rows = [
            {"step": step, "name": "loss", "value": loss, "split": "train"} for step in range(1, 11)
        ]
        write_rows(own / "rows.jsonl", rows)
        if ending:
            CellResult(ending, "loss nan").save(own)
    assert stop_worse_half(spec, tmp_path, 10) == []  # the worse half has diverged already
    assert stop_worse_half(spec, tmp_path, 10) == []


def test_halving_is_idempotent(tmp_path):
    spec = tiny(mode="halving", lr="1e-4,1e-3,1e-2,1e-1", steps=40)
    for number, cell in enumerate(spec.cells()):
        rows = [
            {"step": step, "name": "loss", "value": number - 9.0 * number * (step > 10),
             "split": "train"} for step in range(1, 30)
        ]  # fmt: skip
        write_rows(tmp_path / "cells" / cell.name / "rows.jsonl", rows)
    assert [cell.lr for cell, _ in stop_worse_half(spec, tmp_path, 10)] == [1e-2, 1e-1]
    assert stop_worse_half(spec, tmp_path, 10) == []
    assert [cell.lr for cell, _ in stop_worse_half(spec, tmp_path, 20)] == [1e-4]


def test_cell_waits_for_other_process_and_returns_its_result(tmp_path, monkeypatch):
    job = job_of(tmp_path)
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr("addnorm.comparison.run_cell.LOCK_TIMEOUT_SECONDS", 0.3)
    with try_lock(job.folder.with_name(f".{job.folder.name}.lock")) as acquired:
        assert acquired
        assert run_cell(job, lambda step, loss: None) is None  # locked by this process
        CellResult("done", loss=1.0).save(job.folder)
        assert run_cell(job, lambda step, loss: None).loss == 1.0


def test_nan_scores_are_dropped(tmp_path):
    CellResult("done", loss=1.0, scores={"word_perplexity": math.inf, "bleu": 3.0}).save(tmp_path)
    assert CellResult.read(tmp_path).scores == {"bleu": 3.0}


def test_scores_belong_to_last_checkpoint(tmp_path):
    """A learning rate that destroys the model: the last checkpoint is scored, not the best one."""
    job = job_of(tmp_path, lr=1.0, steps=10, valid_every=1, save_every=1)
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    opened_steps = []
    original = TrainedRun.open

    def open_and_record(folder, **options):
        run = original(folder, **options)
        opened_steps.append(run.step)
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("addnorm.comparison.tasks.text.TrainedRun.open", open_and_record)
        end = run_cell(job, lambda step, loss: None)
    assert end.ending == "done"
    assert opened_steps == [10]


def test_moved_demo_comparison_can_be_prepared(tmp_path):
    spec = tiny()
    get_task(spec.task).prepare(spec, tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    assert get_task(spec.task).prepare(spec, tmp_path / "new").data == str(
        tmp_path / "new" / "data"
    )


def job_of(tmp_path, **values):
    spec = tiny(**values)
    shared_data = get_task(spec.task).prepare(spec, tmp_path)
    cell = spec.cells()[0]
    recipe = get_task(spec.task).recipe(
        spec, cell, data=shared_data.data, tokenizer=tmp_path / "tokenizer.json"
    )
    return Job(cell.name, recipe, tmp_path / "cells" / cell.name, tmp_path / "score")


def test_exception_becomes_crash_result(tmp_path, monkeypatch):
    job = job_of(tmp_path)
    for problem, message in [
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 GB"), "out of memory"),
        (RuntimeError("an odd thing"), "RuntimeError: an odd thing"),
        (UserError("no such thing; try another"), "no such thing; try another"),
    ]:

        def fail(*args, problem=problem, **kwargs):
            raise problem

        monkeypatch.setattr("addnorm.comparison.tasks.text.train", fail)
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        sidecar_path(job.folder, "json").unlink(missing_ok=True)
        assert run_cell(job, lambda step, loss: None) == CellResult.read(job.folder)
        assert (CellResult.read(job.folder).ending, CellResult.read(job.folder).why) == (
            "crashed",
            message,
        )
        assert type(problem).__name__ in job.folder.with_name(job.name + ".error").read_text()


def test_full_disk_raises_disk_full_error(tmp_path, monkeypatch):
    job = job_of(tmp_path)

    def full(*args, **kwargs):
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            raise UserError("the run cannot go on") from None

    monkeypatch.setattr("addnorm.comparison.tasks.text.train", full)
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    with pytest.raises(DiskFullError):
        run_cell(job, lambda step, loss: None)
    assert CellResult.read(job.folder) is None


def test_full_disk_is_recognized_by_errno(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise SafetensorError("Error while serializing: I/O error: No space left (os error 28)")

    monkeypatch.setattr("addnorm.models.base.save_file", full)
    job = job_of(tmp_path)
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    with pytest.raises(DiskFullError):
        run_cell(job, lambda step, loss: None)


def test_cell_with_moved_data_starts_again(tmp_path):
    job = job_of(tmp_path, steps=4)
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    from dataclasses import replace

    paused = replace(job, pause_step=2)
    assert run_cell(paused, lambda step, loss: None) is None
    (tmp_path / "data").rename(tmp_path / "moved")
    recipe = job.recipe.model_copy(update={"data": str(tmp_path / "moved")})
    assert run_cell(replace(job, recipe=recipe), lambda step, loss: None).ending == "done"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers: expected 1 or more, got 0"),
        ({"workers": -1}, "workers: expected 1 or more, got -1"),
        ({"timeout": 0}, "timeout: expected more than 0 seconds, got 0"),
        ({"timeout": math.nan}, "timeout: expected more than 0 seconds, got nan"),
    ],
)
def test_invalid_engine_options_are_rejected(monkeypatch, engine, options, message):
    monkeypatch.setattr("addnorm.comparison.engines.ray._import_ray", pytest.fail)
    with pytest.raises(UserError, match=message):
        make_engine(engine, **options)


def test_address_without_a_cluster_is_rejected():
    with pytest.raises(UserError, match="address: expected with engine ray only, got 10"):
        make_engine("local", address="10.0.0.1:6379")


def test_unknown_engine_is_rejected():
    with pytest.raises(UserError, match="did you mean 'ray'"):
        make_engine("rai")


@pytest.mark.parametrize(("file", "is_run"), [("<stdin>", False), (__file__, True)])
def test_cells_run_the_script_only_if_it_is_a_file(monkeypatch, file, is_run):
    """Cells of `python - < script.py` crashed: there is no file called <stdin>."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", file, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with _hide_missing_script():
        data = get_preparation_data("cell")
    assert ("init_main_from_path" in data) == is_run
    assert sys.modules["__main__"].__file__ == file


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_fork_server_is_not_stopped_by_signals_to_the_group():
    """Ctrl-C while the server imports ended in EOFError; the parent alone handles signals."""
    LocalEngine(workers=1)
    server = forkserver._forkserver._forkserver_pid
    status = Path(f"/proc/{server}/status").read_text()
    blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)
    for number in (signal.SIGINT, signal.SIGTERM):
        assert blocked >> (number - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
