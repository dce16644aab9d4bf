"""Tasks of one's own: a function that trains one cell, its axes, its metric, its interruptions."""

import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import addnorm
from addnorm.cli.main import main
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.grid import Arm
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.comparison.tasks import get_task
from addnorm.comparison.tasks.function_registry import FUNCTIONS
from addnorm.comparison.tasks.used_plugins import find_used_plugins
from addnorm.core.errors import UserError
from addnorm.report.comparison.chart_base import CURVES
from addnorm.report.comparison.loss_charts import BASELINE
from addnorm.report.comparison.page import render_comparison_page
from addnorm.report.comparison.page_charts import ComparisonCharts, build_loss_charts
from tests.comparison.same_process_engine import SameProcessEngine


@pytest.fixture(autouse=True)
def forget_tasks():
    """Remove the tasks that a test registers."""
    known = dict(FUNCTIONS)
    yield
    FUNCTIONS.clear()
    FUNCTIONS.update(known)


def descend(cell):
    """Log a loss that falls from 3; muon ends lower than adamw."""
    level = {"adamw": 1.0, "muon": 0.5}.get(cell.get("optimizer"), 1.0)
    for step in range(1, cell.steps + 1):
        loss = level + (3 - level) * math.exp(-step * cell.lr * 100) + 0.01 * cell.seed
        cell.log(step, train_loss=loss)
    cell.log(cell.steps, valid_loss=loss)


def run(function, folder, **keys):
    values = {"task": function, "lr": [1e-2], "seeds": 2, "steps": 8, "depth": 2} | keys
    return run_comparison(parse_comparison(values), folder, engine=SameProcessEngine())


def test_any_axis_becomes_arms(tmp_path):
    study = run(descend, tmp_path / "study", axes={"optimizer": ["adamw", "muon"]})
    assert [arm.name for arm in study.spec.arms()] == ["optimizer=adamw", "optimizer=muon"]
    assert {each.state for each in study.cells} == {"trained"}
    (best,) = [line for line in study.summary if line.leads]
    assert dict(best.arm.extras) == {"optimizer": "muon"}
    assert "optimizer=muon" in study.verdict[0]
    assert Study.open(tmp_path / "study").spec == study.spec


def test_cell_has_axes_keys_and_own_names(tmp_path):
    seen = []

    def train(cell):
        seen.append(cell)
        assert cell.flag is True and cell["betas"] == [0.9, 0.95] and cell.get("none", 7) == 7
        cell.log(1, valid_loss=1.0)
        cell.folder.joinpath("notes.txt").write_text(cell.name)

    study = run(
        train,
        tmp_path / "study",
        wiring="my_wiring,pre_ln",
        norm="rezero_like(x=1)",
        warmup=5,
        width=64,
        axes={"flag": "true", "betas": [[0.9, 0.95]]},
        seeds=1,
    )
    cell = seen[0]
    assert (cell.wiring, cell.norm, cell.depth, cell.lr) == (
        "my_wiring",
        "rezero_like(x=1)",
        2,
        0.01,
    )
    assert (cell.warmup, cell.seed, cell.steps, cell.width) == (5, 0, 8, 64)
    assert set(dict(cell)) >= {"wiring", "flag", "betas", "width", "seed"}
    assert cell.name == study.cells[0].cell.name and cell.folder.joinpath("notes.txt").is_file()
    with pytest.raises(AttributeError, match="has no 'dropout'; add --axis dropout"):
        _ = cell.dropout


def test_seeds_are_set_before_the_function(tmp_path):
    drawn = []

    def train(cell):
        drawn.append((torch.rand(1).item(), np.random.rand()))
        cell.log(1, valid_loss=1.0)

    run(train, tmp_path / "study", lr=[1e-3, 1e-2])
    assert drawn[0] == drawn[1] != drawn[2]  # seed 0 twice, then seed 1


def test_baseline_is_the_median_of_first_losses(tmp_path):
    study = run(descend, tmp_path / "study")
    first = [study.rows(each.cell)[0]["value"] for each in study.cells]
    assert study.shared_data.baseline == pytest.approx(np.median(first))
    assert "first values that the cells logged" in render_comparison_page(study)


def test_stated_baseline_decides_what_trained(tmp_path):
    addnorm.task("stated", baseline=1.02)(descend)
    study = run("stated", tmp_path / "study")
    assert {each.state for each in study.cells} == {"stuck"}  # 1.0 is not 5 % below


def test_metric_can_be_maximized(tmp_path):
    @addnorm.task("accurate", metric="accuracy", maximize=True, baseline=0.1)
    def train(cell):
        top = {"a": 0.9, "b": 0.6, "c": 0.1}[cell.kind]
        for step in (1, 2, 3):
            cell.log(step, train_loss=1 / step, accuracy=0.1 + (top - 0.1) * step / 3)
        return {"accuracy": top}

    study = run("accurate", tmp_path / "study", axes={"kind": "a,b,c"})
    states = {dict(each.cell.arm.extras)["kind"]: each.state for each in study.cells}
    assert states == {"a": "trained", "b": "trained", "c": "stuck"}
    assert "kind=a" in study.verdict[0] and "accuracy 0.900" in study.verdict[0]
    assert study.cells[0].end.scores["accuracy"] == 0.9
    assert "accuracy 0.900" in str(study) and study.to_frame().accuracy.iloc[0] == 0.9
    page = render_comparison_page(study)
    assert "accuracy" in page and "-0.9" not in study.verdict[0]


def test_without_losses_over_steps_finite_cells_have_trained(tmp_path):
    def train(cell):
        return {"valid_loss": cell.lr}

    study = run(train, tmp_path / "study", lr=[1e-3, 1e-2])
    assert {each.state for each in study.cells} == {"trained"}
    assert study.summary[0].best.lr == 1e-3
    render_comparison_page(study)


def test_negative_losses_are_judged(tmp_path):
    def train(cell):
        for step in (1, 2, 3):
            cell.log(step, train_loss=-1.0 - cell.gain * step, valid_loss=-1.0 - cell.gain * step)

    study = run(train, tmp_path / "study", axes={"gain": [1.0, 0.9, 0.0]})
    states = [each.state for each in study.cells if each.cell.seed == 0]
    assert states == ["trained", "trained", "stuck"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda cell: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda cell: cell.log(1, train_loss=2.0), "valid_loss: expected it from cell.log"),
        (lambda cell: None, "got nothing; log it"),
        (lambda cell: 3.0, "expected None or a mapping"),
        (lambda cell: {"valid_loss": "low"}, "valid_loss: expected a number, got 'low'"),
        (lambda cell: cell.log(1.5, valid_loss=1), "step: expected an integer, got 1.5"),
        (lambda cell: cell.write_rows([{"name": "x"}]), "rows: expected step, name and value"),
        (lambda cell: cell.dropout, "has no 'dropout'"),
    ],
)
def test_crash_is_a_result_with_its_reason(tmp_path, function, reason):
    addnorm.task("crashing")(function)
    study = run("crashing", tmp_path / "study", seeds=1)
    assert study.cells[0].state == "crashed" and reason in study.cells[0].end.why


def test_nan_is_a_divergence(tmp_path):
    def train(cell):
        cell.log(1, train_loss=2.0, valid_loss=2.0)
        cell.log(2, valid_loss=torch.tensor(float("nan")))

    study = run(train, tmp_path / "study", seeds=1)
    assert study.cells[0].state == "diverged" and study.cells[0].end.why == "valid_loss is nan"


def test_rows_of_a_monitor_feed_the_site_charts(tmp_path):
    def train(cell):
        for step in (1, 2):
            where = {"step": step, "stack": "model", "layer": 0, "kind": "self"}
            rows = [{"name": "gradient_norm", "value": 0.5, "site": n, **where} for n in (0, 1)]
            cell.write_rows([*rows, {"name": "loss", "value": 1 / step, "step": step}])
            cell.log(step, train_loss=1 / step, valid_loss=1 / step)

    study = run(train, tmp_path / "study", seeds=1)
    losses = [r for r in study.rows(study.cells[0].cell) if r.get("split") == "train"]
    assert [row["step"] for row in losses] == [1, 2]  # those of the monitor, once
    page = render_comparison_page(study)
    assert "Site metrics: not measured" not in page and "Gradient" in page


def test_interrupted_function_is_called_again_and_replaces_its_rows(tmp_path):
    calls = []

    def train(cell):
        calls.append(cell)
        saved = cell.folder / "step"
        start = int(saved.read_text()) if saved.exists() else 0
        for step in range(start + 1, 7):
            saved.write_text(str(step - 1))
            if step == 4 and len(calls) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            try:
                cell.log(step, train_loss=1 / step, valid_loss=1 / step)
            except Exception:  # as a careless loop may do; it must not swallow the interruption
                continue

    study = run(train, tmp_path / "study", seeds=1)
    assert study.cells[0].state == "waiting"
    study = run(train, tmp_path / "study", seeds=1)
    assert study.complete and len(calls) == 2
    steps = [row["step"] for row in study.rows(study.cells[0].cell) if row["split"] == "train"]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_halving_pauses_functions(tmp_path):
    calls = []

    def train(cell):
        calls.append(cell.lr)
        descend(cell)

    study = run(train, tmp_path / "study", lr=[1e-4, 1e-3, 1e-2, 1e-1], mode="halving", seeds=1)
    states = [each.state for each in study.cells]
    assert states.count("cut") == 3 and states.count("trained") == 1


STUDY = """
import addnorm
HELPER = 2.0

@addnorm.task("from_file", baseline=3.0, defaults={"steps": 4, "lr": [0.1], "seeds": 1})
def train(cell):
    for step in range(1, cell.steps + 1):
        loss = HELPER / step + (cell.optimizer == "muon")
        cell.log(step, train_loss=loss, valid_loss=loss)

def plain(cell):
    cell.log(1, train_loss=3.0)
    cell.log(2, train_loss=1.0, valid_loss=1.0)
"""


def test_file_and_function_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mystudy.py").write_text(STUDY)
    options = ["--task", "mystudy.py:train", "--axis", "optimizer=adamw,muon", "--dry-run"]
    assert main(["compare", *options, "--axis", "wiring=a,b", "--axis", "lr=0.1"]) == 0
    out = capsys.readouterr().out
    spec = parse_comparison(addnorm.comparison.parse.load_yaml(write(tmp_path, out), "spec"))
    assert spec.task == f"{tmp_path}/mystudy.py:train" and spec.steps == 4
    arms = [(arm.wiring, dict(arm.extras)["optimizer"]) for arm in spec.arms()]
    assert arms == [("a", "adamw"), ("a", "muon"), ("b", "adamw"), ("b", "muon")]
    study = run_comparison(spec, tmp_path / "study", engine=SameProcessEngine())
    assert study.complete and study.shared_data.baseline == 3.0
    assert list(study.shared_data.plugins) == [str(tmp_path / "mystudy.py")]
    (tmp_path / "mystudy.py").unlink()  # neither the report nor the frame needs the code
    FUNCTIONS.clear()
    assert main(["report", "study"]) == 0
    assert "from_file" in (tmp_path / "study" / "report.html").read_text()


def write(folder, text):
    path = folder / "spec.yaml"
    path.write_text(text)
    return path


def test_undecorated_function_of_a_file(tmp_path):
    (tmp_path / "own.py").write_text(STUDY.replace("from_file", "other_name"))
    study = run(f"{tmp_path}/own.py:plain", tmp_path / "study", seeds=1)
    assert study.cells[0].state == "trained" and study.task.noun == "plain"


def test_changed_function_is_refused(tmp_path):
    path = tmp_path / "changing.py"
    path.write_text(STUDY.replace("from_file", "changing"))
    run(f"{path}:plain", tmp_path / "study", seeds=1)
    path.write_text(path.read_text().replace("HELPER = 2.0", "HELPER = 2.5"))
    with pytest.raises(UserError, match="has changed since the comparison started"):
        run(f"{path}:plain", tmp_path / "study", seeds=1)


def test_function_of_a_notebook_is_sent_by_value(tmp_path):
    namespace = {"__name__": "__main__", "addnorm": addnorm}
    exec(STUDY.replace("from_file", "from_notebook"), namespace)
    spec = parse_comparison({"task": "from_notebook", "axes": {"optimizer": "adamw"}})
    (plugin,) = find_used_plugins(spec)
    del FUNCTIONS["from_notebook"]
    plugin.load()
    assert FUNCTIONS["from_notebook"].baseline == 3.0
    other = {"__name__": "__main__", "addnorm": addnorm}
    exec(STUDY.replace("from_file", "from_notebook").replace("/ step", "* step"), other)
    (changed,) = find_used_plugins(spec)
    assert changed.digest != plugin.digest


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "missing.py:train"}, "plugin: expected a Python file"),
        ({"task": "nothing_here"}, "unknown task 'nothing_here'"),
        ({"task": "descend_task", "warmup": "own"}, "warmup: expected steps, got own"),
        ({"task": "descend_task", "log": 3}, "log: expected a name that can be an attribute"),
        ({"task": "descend_task", "axes": {"a-b": "1"}}, "a-b: expected a name that can be"),
        (
            {"task": "descend_task", "axes": {"steps": "1,2"}},
            "axes: expected other names than steps",
        ),
        (
            {"task": "descend_task", "axes": {"x": "1,1"}},
            "x: expected distinct values, got 1 twice",
        ),
        ({"task": "descend_task", "axes": {"x": [1, "1"]}}, "x: expected distinct values"),
        ({"task": "descend_task", "axes": {"x": []}}, "x: expected at least one value"),
        ({"task": "descend_task", "axes": {"x": {}}}, "x: expected text, numbers"),
        ({"task": "descend_task", "axes": 3}, "axes: expected names with lists"),
        ({"task": "descend_task", "axes": {"x": "1"}, "x": 2}, "x: expected an axis or a key"),
        ({"task": "descend_task", "data": "no/such/file"}, "which is missing"),
        ({"task": "lm", "axes": {"dimm": "1,2"}}, "did you mean 'dim'"),
        ({"task": "lm", "axes": {"tokenizer": "char,bpe"}}, "tokenizer: expected one value"),
        ({"task": "lm", "axes": {"patience": "0,3"}}, "gives some cells fewer steps"),
        ({"task": "lm", "axes": {"dim": "64,sixty"}}, "dim: expected a valid integer"),
        ({"task": "lm", "axes": {"optimizer": "adamw,adamm"}}, "did you mean"),
    ],
)
def test_invalid_tasks_and_axes(values, message):
    addnorm.task("descend_task")(descend)
    with pytest.raises(UserError, match=message):
        spec = parse_comparison(values)
        task = get_task(spec.task)
        task.check(spec)
        task.check_data(spec)


@pytest.mark.parametrize(
    ("name", "message"),
    [("lm", "exists already"), ("table", "exists already"), ("my gpt", "expected letters"),
     (descend, "write @addnorm.task")],
)  # fmt: skip
def test_invalid_names_of_tasks(name, message):
    with pytest.raises(UserError, match=message):
        addnorm.task(name)


def test_recipe_keys_of_text_tasks_can_be_axes():
    spec = parse_comparison({"task": "lm", "axes": {"dropout": "0,0.1", "ema": "0.9"}, "lr": 1e-3})
    recipes = [
        get_task("lm").recipe(spec, cell, data="d", tokenizer="char") for cell in spec.cells()
    ]
    assert {recipe.to_flat_dict()["dropout"] for recipe in recipes} == {0.0, 0.1}
    assert {recipe.to_flat_dict()["ema"] for recipe in recipes} == {0.9}
    assert Arm("pre_ln", extras=(("dropout", 0), ("ema", 0.9))) in spec.arms()


def test_axes_in_several_grids():
    grids = [{"axes": {"optimizer": "muon"}}, {"axes": {"optimizer": "adamw"}, "lr": [0.1]}]
    spec = parse_comparison({"task": descend, "grids": grids, "seeds": 1})
    assert [arm.name for arm in spec.arms()] == ["optimizer=muon", "optimizer=adamw"]
    same_name = [{"axes": {"x": ["1 y=2"]}}, {"axes": {"x": [1], "y": [2]}}]
    with pytest.raises(UserError, match="expected distinct arms, got 'x=1 y=2' twice"):
        parse_comparison({"task": descend, "grids": same_name})


def test_sweep_of_a_function_is_extended(tmp_path):
    def train(cell):
        for step in (1, 2):
            loss = 2.0 - step * cell.lr * (cell.kind == "fast") * 10 - 0.1 * step
            cell.log(step, train_loss=loss, valid_loss=loss)

    study = run(train, tmp_path / "study", lr="sweep", axes={"kind": "fast"}, wiring="own", seeds=1)
    added = {cell.lr for each in study.spec.extensions for cell in each.cells()}
    assert added == {0.03, 0.1, 0.3} and study.complete
    assert Study.open(tmp_path / "study").complete


@pytest.mark.slow
def test_sigterm_stops_the_cells_of_a_command_within_seconds(tmp_path):
    (tmp_path / "endless.py").write_text(
        "import time\n"
        "def train(cell):\n"
        "    for step in range(1, 10**6):\n"
        "        time.sleep(0.01)\n"
        "        cell.log(step, train_loss=1 / step, valid_loss=1 / step)\n"
    )
    command = [sys.executable, "-m", "addnorm", "compare", "--task", "endless.py:train"]
    process = subprocess.Popen(
        [*command, "--lr", "1e-3", "--seeds", "1", "-o", "out"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stderr:
        if " at " in line and "left" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 143 and "Traceback" not in error
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [cell["state"] for cell in result["cells"]] == ["waiting"]


def test_page_draws_the_metric_that_arms_are_judged_by(tmp_path):
    @addnorm.task("graded", metric="accuracy", maximize=True, baseline=0.1)
    def train(cell):
        for step in (1, 2, 3):
            cell.log(step, train_loss=3.0 / step, accuracy=0.25 * step)

    study = run(train, tmp_path / "study", axes={"size": [1, 2]})
    losses, metric = build_loss_charts(ComparisonCharts.from_study(study)).charts
    assert (losses.title, metric.title) == ("Training loss", "Accuracy")
    values = {
        chart.title: [curve["value"] for curve in chart.spec["datasets"][CURVES]]
        for chart in (losses, metric)
    }
    assert all(value == [3.0, 1.5, 1.0] for value in values["Training loss"])
    assert all(value == [0.25, 0.5, 0.75] for value in values["Accuracy"])
    # The baseline is an accuracy, so that it belongs to one chart only, with its own sign.
    assert losses.spec["datasets"][BASELINE] == []
    assert metric.spec["datasets"][BASELINE] == [{"value": 0.1, "label": "baseline 0.1"}]
    assert "nats" not in json.dumps([losses.spec, metric.spec])
    page = render_comparison_page(study)
    assert "An arm is one combination of values of the axes" in page
    assert "see the data in the same order" not in page
    assert "number below a cell: final accuracy" in page
    assert "to the highest final accuracy of any cell" in page
    assert "less than half of both the baseline and its own highest accuracy" in page
    assert "validation loss" not in page
