"""Comparisons on a table: splits, baseline, training, rejected input."""

import math
import os
import signal

import numpy as np
import pandas as pd
import pytest
import yaml

from addnorm.comparison import Study, run_comparison
from addnorm.comparison.cell_job import Heartbeat, Job
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.parse import parse_comparison, parse_task_option
from addnorm.comparison.run import check_comparison
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.tasks import get_task
from addnorm.comparison.tasks.table_data import TableSplits
from addnorm.core.errors import UserError
from addnorm.core.rows import read_rows
from addnorm.report.comparison.page import write_comparison_report
from addnorm.tabular.task_setup import split_rows
from tests.comparison.same_process_engine import SameProcessEngine

TASK = get_task("table")
SMALL = {"task": "table", "target": "y", "dim": 8, "heads": 2, "depth": 1, "steps": 12, "lr": 1e-2}


def frame(rows=80):
    """Return a table whose class is the sign of column a."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(rows), rng.choice(["x", "z"], rows)
    y = np.where(a > 0, "yes", "no")
    number = a + (b == "x") + 0.1 * rng.standard_normal(rows)
    return pd.DataFrame({"a": a, "b": b, "y": y, "number": number})


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "data.csv"
    frame().drop(columns="number").to_csv(path, index=False)
    return path


def spec_of(table, **more):
    return parse_comparison(SMALL | {"data": str(table)} | more)


def test_task_option_with_table():
    assert parse_task_option("table:a/b.csv") == {"task": "table", "data": "a/b.csv"}
    spec = parse_comparison({"task": "table", "target": "y"})
    assert ({cell.depth for cell in spec.cells()}, spec.steps) == ({2}, 400)
    assert parse_comparison(yaml.safe_load(spec.to_yaml())) == spec


def test_splits_are_disjoint_and_complete(table):
    table_splits = TableSplits.from_spec(spec_of(table))
    assert table_splits.counts == {"train": 56, "valid": 12, "test": 12}
    all_rows = pd.concat(table_splits.splits.values())
    assert sorted(all_rows.index) == list(range(80))
    repeated = TableSplits.from_spec(spec_of(table, seeds=5, wiring="b2t"))
    assert all(repeated.splits[name].equals(part) for name, part in table_splits.splits.items())
    share = frame()["y"].eq("yes").mean()
    assert table_splits.splits["valid"]["y"].eq("yes").mean() == pytest.approx(share, abs=0.1)


def test_training_rows_are_limited_by_steps(table):
    assert TableSplits.from_spec(spec_of(table, steps=2, batch_size=10)).counts["train"] == 20


def test_class_baseline(table):
    table_splits = TableSplits.from_spec(spec_of(table))
    train, valid = (table_splits.splits[part]["y"] for part in ("train", "valid"))
    share = {name: (train.eq(name).sum() + 1) / (len(train) + 2) for name in ("yes", "no")}
    assert table_splits.baseline() == pytest.approx(-np.mean([math.log(share[y]) for y in valid]))


def test_regression_baseline(tmp_path):
    frame().drop(columns="y").to_parquet(tmp_path / "t.parquet")
    table_splits = TableSplits.from_spec(spec_of(tmp_path / "t.parquet", target="number"))
    train, valid = (table_splits.splits[part]["number"] for part in ("train", "valid"))
    expected = ((valid - train.mean()) ** 2).mean() / train.var(ddof=0)
    assert table_splits.kind == "regress" and table_splits.baseline() == pytest.approx(
        expected, rel=1e-5
    )


def test_table_comparison_end_to_end(table, tmp_path):
    spec = spec_of(table, wiring="pre_ln,post_ln", seeds=1, steps=40, missing=0.5, noise="0.2,0.4")
    study = run_comparison(spec, tmp_path / "out", engine=SameProcessEngine())
    assert [each.state for each in study.cells] == ["trained", "trained"]
    assert study.score.name == "accuracy" and study.shared_data.about["target"] == "y"
    end = study.cells[0].end
    assert list(end.scores) == [
        *("accuracy", "accuracy, missing 0.5", "accuracy, noise 0.2", "accuracy, noise 0.4"),
    ]
    assert end.step == 40 and end.loss == pytest.approx(
        min(r["value"] for r in study.rows(study.cells[0].cell) if r["split"] == "valid")
    )
    assert all(sample.rpartition(" (")[0] in ("yes", "no") for sample in end.samples)
    page = write_comparison_report(tmp_path / "out").read_text()
    assert (
        "2 arms on a table" in page
        and "addnorm fit" in page
        and "the distribution of the target" in page
    )
    assert Study.open(tmp_path / "out").verdict == study.verdict
    assert TASK.prepare(spec, tmp_path / "out") == SharedData.read(tmp_path / "out")
    table.write_text(table.read_text() + "0.5,x,yes\n")
    with pytest.raises(UserError, match=r"data.csv has changed since the comparison started"):
        TASK.prepare(spec, tmp_path / "out")


def test_regression_is_scored_by_r2(tmp_path):
    frame().drop(columns="y").to_csv(tmp_path / "t.csv", index=False)
    spec = spec_of(tmp_path / "t.csv", target="number", wiring="pre_ln", seeds=1, steps=60)
    study = run_comparison(spec, tmp_path / "out", engine=SameProcessEngine())
    (each,) = study.cells
    assert study.score.name == "r2" and each.end.scores["r2"] > 0.3 and each.state == "trained"
    assert float(each.end.samples[0]) == pytest.approx(0, abs=10)


def test_unknown_target_scaling_is_rejected(tmp_path):
    frame().drop(columns="y").to_csv(tmp_path / "t.csv", index=False)
    spec = spec_of(tmp_path / "t.csv", target="number", target_scaling="log")
    with pytest.raises(UserError, match="unknown target_scaling 'log'"):
        get_task("table").prepare(spec, tmp_path / "out")


def cell_of(spec, folder, **changes):
    """Return the job of the first cell, with its data prepared."""
    task, (cell, *_) = get_task("table"), spec.cells()
    shared_data = task.prepare(spec, folder)
    cell_folder = folder / "cells" / cell.name
    cell_folder.mkdir(parents=True, exist_ok=True)
    recipe = task.recipe(spec, cell, data=shared_data.data, tokenizer="")
    return Job(cell.name, recipe, cell_folder, folder / "score", **changes)


def test_interrupted_table_cell_reproduces_result(table, tmp_path):
    spec, task = spec_of(table, wiring="pre_ln"), get_task("table")
    uninterrupted = task.train_and_score(
        cell_of(spec, tmp_path / "one"), Heartbeat(lambda step, loss: None)
    )
    job = cell_of(spec, tmp_path / "two")

    def stop_after_two_steps(step, loss):
        if step >= 2:
            os.kill(os.getpid(), signal.SIGTERM)

    assert (
        task.train_and_score(job, Heartbeat(stop_after_two_steps)) is None
        and CellResult.read(job.folder) is None
    )
    resumed = task.train_and_score(job, Heartbeat(lambda step, loss: None))
    assert (resumed.loss, resumed.scores, resumed.step) == (
        uninterrupted.loss,
        uninterrupted.scores,
        uninterrupted.step,
    )


def test_table_cell_pauses_for_halving(table, tmp_path):
    spec = spec_of(table, wiring="pre_ln", mode="halving")
    job = cell_of(spec, tmp_path, pause_step=4)
    assert get_task("table").train_and_score(job, Heartbeat(lambda step, loss: None)) is None
    assert [row["step"] for row in read_rows(job.folder / "rows.jsonl")] == [2, 2, 4, 4]


def test_nonfinite_loss_is_a_result(table, tmp_path):
    spec = spec_of(table, wiring="none", lr=1e30, schedule="none", optimizer="adamw(eps=1e-300)")
    end = get_task("table").train_and_score(
        cell_of(spec, tmp_path), Heartbeat(lambda step, loss: None)
    )
    assert end.ending == "diverged" and "a loss was not finite in epoch 1" in end.why


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"target": ""}, "target: expected the column to predict"),
        ({"target": "z"}, "unknown target column 'z'"),
        ({"data": "nowhere.csv"}, "no table at .*nowhere.csv: there is no such file"),
        ({"data": "demo"}, "task: expected table:FILE"),
        ({"kind": "rank"}, "kind: expected 'auto', 'classify' or 'regress', got 'rank'"),
        ({"kind": "regress"}, "target 'y': expected numbers for kind=regress"),
        ({"batch_size": 0}, "batch_size: expected 'auto' or a positive integer, got 0"),
        ({"dimm": 3}, "a comparison has no 'dimm'; did you mean 'dim'"),
        ({"max_epochs": 3}, "a comparison has no 'max_epochs'"),
        ({"missing": 1.5}, "missing: expected a number less than 1, got 1.5"),
        ({"heads": 3}, "cannot build a table model with"),
        ({"model": "tree"}, "unknown model 'tree'"),
        ({"wiring": "pre_nl"}, "unknown wiring 'pre_nl'; did you mean 'pre_ln'"),
        ({"norm": "batc"}, "unknown norm 'batc'"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin'"),
        ({"column_types": {"a": "colour"}}, "unknown column type 'colour'"),
    ],
)
def test_invalid_table_specs_are_rejected(table, more, message):
    with pytest.raises(UserError, match=message) as caught:
        spec = parse_comparison(SMALL | {"data": str(table)} | more)
        check_comparison(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        (frame(19), "expected at least 20 rows, got 19"),
        (frame().assign(y="yes"), "target 'y': expected at least two values, got yes in every row"),
        (frame()[["y"]], "expected feature columns beside the target, got only 'y'"),
        (frame().assign(a=np.nan), "columns without any value: 'a'"),
        (frame().assign(y=[None, *["yes"] * 79]), "Input y contains NaN"),
        (frame().assign(y=[np.inf, *np.arange(79)]), "Input y contains infinity"),
    ],
)
def test_unusable_tables_are_rejected(tmp_path, invalid, message):
    invalid.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(UserError, match=message):
        TASK.check_data(spec_of(tmp_path / "t.csv"))


def test_column_types_are_inferred_from_all_rows(tmp_path):
    """The only text cell of a column may be in a split that is not used for training."""
    held_out = split_rows(frame()["y"], 0.3, classify=True)[1]
    odd = frame().assign(a=[str(each) for each in range(80)], only=np.nan)
    odd.loc[held_out[0], ["a", "only"]] = "odd", 1.5
    odd.to_csv(tmp_path / "t.csv", index=False)
    spec = spec_of(tmp_path / "t.csv", wiring="pre_ln", seeds=1)
    types = {"a": "string", "b": "categorical", "number": "numeric", "only": "numeric"}
    assert TableSplits.from_spec(spec).types == types
    end = get_task("table").train_and_score(
        cell_of(spec, tmp_path), Heartbeat(lambda step, loss: None)
    )
    assert end.ending == "done"


def test_baseline_uses_scale_of_the_loss(tmp_path):
    heavy = frame().assign(number=np.exp(3 * frame()["a"]))
    heavy.to_csv(tmp_path / "t.csv", index=False)
    baselines = {
        scaling: TASK.prepare(
            spec_of(tmp_path / "t.csv", target="number", target_scaling=scaling), tmp_path / scaling
        ).baseline
        for scaling in ("standard", "quantile")
    }
    table_splits = TableSplits.from_spec(spec_of(tmp_path / "t.csv", target="number"))
    assert baselines == {
        scaling: pytest.approx(table_splits.baseline(scaling)) for scaling in baselines
    }
    assert baselines["standard"] != pytest.approx(baselines["quantile"])


def test_rare_classes_can_be_split(tmp_path):
    table = frame().assign(y=[f"c{n // 2}" for n in range(80)])
    table.to_csv(tmp_path / "t.csv", index=False)
    assert sum(TableSplits.from_spec(spec_of(tmp_path / "t.csv")).counts.values()) == 80
