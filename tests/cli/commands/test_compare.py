"""The commands `addnorm compare` and `addnorm report`."""

import json

import pytest
import yaml

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.parse import parse_comparison
from tests.comparison.synthetic_study import made_up

TINY = ["dim=8", "heads=2", "batch_tokens=256", "--steps", "3", "--depth", "1", "--score", "2"]


def test_compare_end_to_end(addnorm, tmp_path):
    out = tmp_path / "runs"
    words = ["compare", "--wiring", "pre_ln,rezero", "--lr", "1e-3", "--seeds", "1", *TINY]
    done = addnorm(*words, "-o", str(out), "--csv")
    assert done.code == 0, done.err
    assert "pre_ln" in done.out and "At depth 1 " in done.out
    assert "2 cells of 3 steps" in done.err and "2/2" in done.err
    assert "<html" in (out / "report.html").read_text()
    assert len((out / "cells.csv").read_text().splitlines()) == 3
    assert Study.open(out).complete
    again = addnorm(*words, "-o", str(out), "--json")
    assert again.code == 0
    assert json.loads(again.out)["complete"]
    assert "2 of 2 cells are already done" in again.err
    other = addnorm(*words, "dropout=0.2", "-o", str(out))
    assert other.code == 2
    assert "dropout was left out, now 0.2" in other.err


def test_dry_run_prints_readable_spec(addnorm, tmp_path):
    done = addnorm("compare", "--wiring", "b2t,mix_ln(post=0.5)", "--lr", "sweep", "--dry-run")
    assert done.code == 0
    path = tmp_path / "study.yaml"
    path.write_text(done.out)
    again = addnorm("compare", "-c", str(path), "--dry-run")
    assert again.out == done.out
    assert yaml.safe_load(done.out)["wiring"] == ["b2t", "mix_ln(post=0.5)"]
    shorter = addnorm("compare", "-c", str(path), "--steps", "9", "--dry-run")
    assert yaml.safe_load(shorter.out)["steps"] == 9


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--task", "sing"], "unknown task 'sing'"),
        (["--task", "none.yaml"], "no recipe at none.yaml"),
        (["--task", "table:none.csv"], "add --target COLUMN"),
        (["--task", "table", "--target", "y"], "task: expected table:FILE"),
        (["--task", "table:none.csv", "--target", "y"], "none.csv: there is no such file"),
        (["--task", "lm", "--target", "y"], "a comparison has no 'target'"),
        (["--wiring", ""], "wiring: expected at least one value"),
        (["--wiring", "pre"], "unknown wiring 'pre'"),
        (["--seeds", "0"], "seeds: expected a number greater than or equal to 1"),
        (["--depth", "0"], "depth: expected a number greater than or equal to 1"),
        (["--depth", "a"], "depth: expected a valid integer, got 'a'"),
        (["--lr", "fast"], "lr: expected a valid number, got 'fast'"),
        (["--warmup", "500"], "500"),
        (["--demo", "--wiring", "pre_ln"], "cannot override an axis of --demo"),
        (["--demo", "--task", "lm"], "--demo: expected no --config"),
        (["wiring=b2t", "--wiring", "pre_ln"], "wiring is given twice"),
        (["-c", "none.yaml"], "no study at none.yaml"),
        (["dim"], "cannot parse 'dim'"),
        (["dim=30"], "heads"),
        (["--address", "here:1"], "expected --engine ray"),
        (["--engine", "slurm"], "unknown engine 'slurm'"),
        (["--workers", "0"], "workers: expected 1 or more, got 0"),
        (["--hang-timeout", "0"], "timeout: expected more than 0 seconds"),
        (["data=nowhere", "tokenizer=char"], "no corpus at"),
    ],
)
def test_errors_are_one_line(addnorm, words, told, tmp_path):
    done = addnorm("compare", *words, "-o", str(tmp_path / "runs"))
    assert done.code == 2
    assert told in done.err
    assert done.err.startswith("addnorm:") and done.err.count("\n") == 1
    assert done.out == ""


def test_folder_with_other_files_is_unchanged(addnorm, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    done = addnorm("compare", *TINY, "-o", str(tmp_path))
    assert (done.code, [path.name for path in tmp_path.iterdir()]) == (2, ["mine.txt"])
    assert "which contains mine.txt" in done.err


def test_report_can_be_rebuilt(addnorm, tmp_path):
    spec = parse_comparison({"wiring": "post_ln,pre_ln", "lr": "1e-3", "depth": "2", "seeds": 2})
    folder = made_up(tmp_path / "runs", spec)
    done = addnorm("report", str(folder), "--csv", "--png", str(tmp_path / "pictures"))
    assert done.code == 0, done.err
    paths = done.out.splitlines()
    assert paths[0] == str(folder / "report.html")
    assert any(path.endswith("summary.csv") for path in paths)
    assert list((tmp_path / "pictures").glob("*.png"))


def test_report_of_empty_folder_is_rejected(addnorm, tmp_path):
    done = addnorm("report", str(tmp_path))
    assert done.code == 2
    assert "no comparison, run or claims in" in done.err
    assert addnorm("report", str(tmp_path / "none")).code == 2
