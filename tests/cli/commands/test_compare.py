"""The commands `addnorm compare` and `addnorm report`."""

import json

import pytest
import yaml

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.parse import parse_comparison
from tests.comparison.synthetic_study import write_synthetic_study

TINY = ["dim=8", "heads=2", "batch_tokens=256", "--steps", "3", "--depth", "1", "--score", "2"]


def test_compare_end_to_end(addnorm, tmp_path):
    out = tmp_path / "runs"
    arguments = ["compare", "--wiring", "pre_ln,rezero", "--lr", "1e-3", "--seeds", "1", *TINY]
    result = addnorm(*arguments, "-o", str(out), "--csv")
    assert result.code == 0, result.err
    assert "pre_ln" in result.out and "At depth 1 " in result.out
    assert "2 cells of 3 steps" in result.err and "2/2" in result.err
    assert "<html" in (out / "report.html").read_text()
    assert len((out / "cells.csv").read_text().splitlines()) == 3
    assert Study.open(out).complete
    repeated = addnorm(*arguments, "-o", str(out), "--json")
    assert repeated.code == 0
    assert json.loads(repeated.out)["complete"]
    assert "2 of 2 cells are already done" in repeated.err
    other = addnorm(*arguments, "dropout=0.2", "-o", str(out))
    assert other.code == 2
    assert "dropout was left out, now 0.2" in other.err


def test_transfer_end_to_end(addnorm, tmp_path):
    out = tmp_path / "runs"
    arguments = [
        *("compare", "--transfer", "depth=1,2", "dim=8,16", "--wiring", "pre_ln"),
        *("--lr", "1e-3,4e-3", "--seeds", "1", "--steps", "3", "--score", "2"),
        *("heads=2", "batch_tokens=256", "scale=completep(base_dim=8, base_depth=1)"),
    ]
    result = addnorm(*arguments, "-o", str(out))
    assert result.code == 0, result.err
    assert "8 cells of 3 steps" in result.err
    assert "pre_ln: the best learning rate of depth 1, dim 8," in result.out
    assert "a better rate may lie beyond those that were tried" in result.out
    page = (out / "transfer.html").read_text()
    assert "Loss over learning rate" in page and "completep(base_dim=8, base_depth=1)" in page
    repeated = addnorm(*arguments, "-o", str(out), "--json")
    (answer,) = json.loads(repeated.out)["transfer"]
    assert [(each["depth"], each["dim"]) for each in answer["sizes"]] == [
        *((1, 8), (2, 8), (1, 16), (2, 16))
    ]
    assert all(len(each["losses"]) == 2 for each in answer["sizes"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--transfer", "width=1,2"], "--transfer: expected depth=4,8,16 or dim=64,128"),
        (["--transfer", "depth="], "--transfer: expected depth=4,8,16 or dim=64,128"),
        (["--transfer", "depth=1,2", "--depth", "3"], "--transfer: depth is given twice"),
        (["--transfer", "depth=1,x"], "depth: expected a valid integer, got 'x'"),
        (["--transfer", "dim=8,0"], "dim: expected a number greater than or equal to"),
    ],
)
def test_odd_sizes_are_one_line(addnorm, tmp_path, arguments, message):
    result = addnorm("compare", *arguments, "-o", str(tmp_path / "runs"))
    assert result.code == 2 and not result.out
    assert message in result.err and result.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_dry_run_prints_readable_spec(addnorm, tmp_path):
    result = addnorm("compare", "--wiring", "b2t,mix_ln(post=0.5)", "--lr", "sweep", "--dry-run")
    assert result.code == 0
    path = tmp_path / "study.yaml"
    path.write_text(result.out)
    repeated = addnorm("compare", "-c", str(path), "--dry-run")
    assert repeated.out == result.out
    assert yaml.safe_load(result.out)["wiring"] == ["b2t", "mix_ln(post=0.5)"]
    shorter = addnorm("compare", "-c", str(path), "--steps", "9", "--dry-run")
    assert yaml.safe_load(shorter.out)["steps"] == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
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
        (["--engine", "pbs"], "unknown engine 'pbs'"),
        (["--workers", "0"], "workers: expected 1 or more, got 0"),
        (["--hang-timeout", "0"], "timeout: expected more than 0 seconds"),
        (["data=nowhere", "tokenizer=char"], "no corpus at"),
    ],
)
def test_errors_are_one_line(addnorm, arguments, message, tmp_path):
    result = addnorm("compare", *arguments, "-o", str(tmp_path / "runs"))
    assert result.code == 2
    assert message in result.err
    assert result.err.startswith("addnorm:") and result.err.count("\n") == 1
    assert result.out == ""


def test_folder_with_other_files_is_unchanged(addnorm, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    result = addnorm("compare", *TINY, "-o", str(tmp_path))
    assert (result.code, [path.name for path in tmp_path.iterdir()]) == (2, ["mine.txt"])
    assert "which contains mine.txt" in result.err


def test_report_can_be_rebuilt(addnorm, tmp_path):
    spec = parse_comparison({"wiring": "post_ln,pre_ln", "lr": "1e-3", "depth": "2", "seeds": 2})
    folder = write_synthetic_study(tmp_path / "runs", spec)
    result = addnorm("report", str(folder), "--csv", "--png", str(tmp_path / "pictures"))
    assert result.code == 0, result.err
    paths = result.out.splitlines()
    assert paths[0] == str(folder / "report.html")
    assert any(path.endswith("summary.csv") for path in paths)
    assert list((tmp_path / "pictures").glob("*.png"))


def test_report_of_empty_folder_is_rejected(addnorm, tmp_path):
    result = addnorm("report", str(tmp_path))
    assert result.code == 2
    assert "no comparison, run, monitor or claims in" in result.err
    assert addnorm("report", str(tmp_path / "none")).code == 2
