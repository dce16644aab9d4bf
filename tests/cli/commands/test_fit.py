"""`addnorm fit` and `addnorm predict`."""

import gzip
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import yaml

from addnorm.data.csv_cells import unescape_formula
from addnorm.tabular import load
from addnorm.tabular.task_setup import split_rows
from tests.tabular.sample_tables import mixed

QUICK = ("model=ft_transformer", "dim=8", "depth=1", "heads=2", "max_epochs=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    frame, y = mixed(80)
    frame = frame.assign(answer=y, price=frame["count"] * 1.5 + 0.25)
    frame.to_csv(folder / "data.csv", index=False)
    frame.to_csv(folder / "data.tsv", index=False, sep="\t")
    with gzip.open(folder / "data.csv.gz", "wt") as file:
        frame.to_csv(file, index=False)
    table = pa.Table.from_pandas(frame)
    pyarrow.parquet.write_table(table, folder / "data.parquet")
    pyarrow.feather.write_feather(table, folder / "data.arrow", compression="uncompressed")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    from addnorm.cli.main import main

    command = ["fit", str(folder / "data.csv"), *QUICK, "--target", "answer"]
    assert main([*command, "-o", str(folder / "run"), "wiring=b2t"]) == 0
    return folder / "run"


def test_fit_prints_column_types_and_writes_a_run_folder(addnorm, folder):
    out = folder / "printed"
    result = addnorm("fit", str(folder / "data.csv"), *QUICK, "-t", "answer", "-o", str(out))
    assert (result.code, result.out) == (0, "")
    kinds = {line.split()[0]: line.split()[1] for line in result.err.splitlines() if line.split()}
    assert [kinds[name] for name in ("number", "flag", "colour", "day")] == [
        *("numeric", "boolean", "categorical", "datetime")
    ]
    assert "80 rows, 7 columns; classify 'answer'" in result.err
    assert "gradient boosting" in result.err and "epoch 1/2" in result.err
    assert {path.name for path in out.iterdir() if path.name != ".lock"} == {
        *("config.yaml", "estimator.json", "model.safetensors", "report.html", "rows.jsonl")
    }
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert (config["target"], config["task"], config["params"]["dim"]) == ("answer", "classify", 8)


def test_report_has_all_sections(run):
    page = (run / "report.html").read_text()
    for message in (
        *("gradient boosting", "Loss over epochs", "Reliability", "Importance of columns"),
        *("Block diagram", "b2t", "colour", "addnorm fit "),
    ):
        assert message in page, message
    assert "http://" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    "name", ["data.csv", "data.tsv", "data.csv.gz", "data.parquet", "data.arrow"]
)
def test_predictions_do_not_depend_on_the_file_format(addnorm, folder, run, name):
    result = addnorm("predict", str(run), str(folder / name))
    lines = result.out.splitlines()
    assert result.code == 0
    assert lines[0] == "answer" and len(lines) == 81
    assert set(lines[1:]) <= {"yes", "no"}
    assert result.out == addnorm("predict", str(run), str(folder / "data.csv")).out


def test_scores_option_prints_probabilities(addnorm, folder, run):
    result = addnorm("predict", str(run), str(folder / "data.csv"), "--scores")
    lines = [line.split(",") for line in result.out.splitlines()]
    assert lines[0] == ["answer", "p(no)", "p(yes)"]
    for answer, no, yes in lines[1:]:
        assert float(no) + float(yes) == pytest.approx(1, abs=1e-5)
        assert answer == ("yes" if float(yes) > float(no) else "no")


def test_columns_are_matched_by_name(addnorm, folder, run, tmp_path):
    frame = pd.read_csv(folder / "data.csv")
    expected = addnorm("predict", str(run), str(folder / "data.csv")).out
    frame[sorted(frame)].assign(extra=1).to_csv(tmp_path / "other.csv", index=False)
    result = addnorm("predict", str(run), str(tmp_path / "other.csv"))
    assert result.out == expected
    assert result.err == "addnorm: ignoring columns that were not in the fit: extra\n"
    frame.drop(columns=["flag", "day"]).to_csv(tmp_path / "less.csv", index=False)
    result = addnorm("predict", str(run), str(tmp_path / "less.csv"))
    assert (result.code, result.out) == (2, "")
    assert "the table lacks columns of the fit: 'flag', 'day'" in result.err


def test_predict_ignores_the_target_column(addnorm, folder, tmp_path):
    table, new, run = tmp_path / "t.csv", tmp_path / "new.csv", str(tmp_path / "run")
    table.write_text("a,y\n" + "".join(f"{row},{row * 1.5}\n" for row in range(30)))
    assert addnorm("fit", str(table), "-t", "y", "-o", run, *QUICK, "--test-size=0").code == 0
    new.write_text("a,y\n1,unknown\n2,\n")
    result = addnorm("predict", run, str(new))
    assert (result.code, len(result.out.splitlines()), result.err) == (0, 3, "")


def test_regression_has_no_scores(addnorm, folder, tmp_path):
    out = str(tmp_path / "run")
    result = addnorm(
        *("fit", str(folder / "data.csv"), *QUICK, "-t", "price", "-o", out),
        *("--column-type", "count=categorical", "--test-size", "0", "lr=1e-3"),
    )
    assert result.code == 0 and "regress 'price'" in result.err and "no test rows" in result.err
    assert addnorm("predict", out, str(folder / "data.csv")).out.startswith("price\n")
    result = addnorm("predict", out, str(folder / "data.csv"), "--scores")
    assert result.code == 2 and "--scores: expected a classifier, got the regression" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data.csv",), "--target: expected the name of the column to predict, got none"),
        (("data.csv", "-t", "anser"), "unknown target column 'anser'; did you mean 'answer'?"),
        (("data.csv", "-t", "answer", "dimm=8"), "unknown parameter 'dimm'; did you mean 'dim'"),
        (("data.csv", "-t", "answer", "dim"), "expected KEY=VALUE such as depth=3, got 'dim'"),
        (
            ("data.csv", "-t", "answer", "--column-type", "count"),
            "--column-type: expected COLUMN=TYPE such as zip=categorical, got 'count'",
        ),
        (("data.csv", "-t", "answer", "--column-type", "count=int"), "unknown column type 'int'"),
        (
            ("data.csv", "-t", "answer", "--task", "sort"),
            "--task: expected classify, regress or auto, got 'sort'",
        ),
        (
            ("data.csv", "-t", "answer", "--test-size", "1"),
            "--test-size: expected a fraction in [0, 1), got 1",
        ),
        (("data.csv", "-t", "answer", "wiring=postln"), "unknown wiring 'postln'"),
        (("holes.csv", "-t", "a"), "Input y contains NaN: target 'a' is missing in 1 of 3"),
        (("none.csv", "-t", "x"), "none.csv"),
        (("data.doc", "-t", "x"), "expected a name that ends in .tsv"),
        (("text.csv", "-t", "x"), "expected a table with a header and rows"),
        (("empty.csv", "-t", "x"), "expected a table with a header and rows"),
        (("duplicate.csv", "-t", "a"), "expected unique column names, got 'a' more than once"),
        (("one.csv", "-t", "a"), "expected feature columns beside the target, got only 'a'"),
        (("same.csv", "-t", "a"), "only one class"),
        (("hollow.csv", "-t", "a"), "columns without any value: 'b'"),
        (("broken.parquet", "-t", "a"), "expected a table with a header and rows"),
        (("days.csv", "-t", "a"), "target 'a': expected numbers or classes, got datetimes"),
        (("data.csv", "-t", "answer", "depth=["), "expected a value such as 3"),
        (("data.csv", "-t", "answer", "max_seconds=abc"), "max_seconds: expected a positive"),
        (("data.csv", "-t", "answer", "validation_fraction=x"), "validation_fraction: expected a"),
        (
            ("data.csv", "-t", "answer", "average=5"),
            "average: expected a fraction between 0 and 1, got 5",
        ),
        (("data.csv", "-t", "answer", "device=[a]"), "device: expected a name"),
        (("data.csv", "-t", "answer", "device=cuda:99"), "device 'cuda:99' cannot be used"),
        (("data.csv", "-t", "answer", "model=[a]"), "unknown model"),
        (
            ("data.csv", "-t", "answer", "column_types=zip"),
            "column_types: expected a mapping, got 'zip'",
        ),
        (("latin.csv", "-t", "a"), "expected UTF-8 text"),
        (("infinite.csv", "-t", "a"), "Input y contains infinity: target 'a' is infinite in 1 of"),
    ],
)
def test_errors_print_one_line_and_exit_with_2(addnorm, folder, tmp_path, arguments, message):
    contents = {
        "text.csv": 'a,b\n1\n"2,3,4\n',
        "empty.csv": "",
        "duplicate.csv": "a,a\n1,2\n",
        "holes.csv": "a,b\n1,1\n,2\n3,3\n",
        "days.csv": "a,b\n2026-01-01,1\n2026-01-02,2\n",
        "one.csv": "a\n1\n2\n",
        "same.csv": "a,b\n" + "x,1\n" * 20,
        "hollow.csv": "a,b\n" + "x,\ny,\n" * 20,
        "broken.parquet": "nothing",
        "data.doc": "a",
        "infinite.csv": "a,b\n" + "1.5,1\n2.5,2\n" * 10 + "inf,3\n",
        "latin.csv": "a,\udcf6\n1,2\n",
    }
    name, *rest = arguments
    path = tmp_path / name if name in contents else folder / name
    if name in contents:
        path.write_text(contents[name], errors="surrogateescape")
    result = addnorm("fit", str(path), *rest, "-o", str(tmp_path / "run"))
    last = result.err.splitlines()[-1]
    assert (result.code, result.out) == (2, "")
    assert message in last and last.startswith("addnorm: ")
    assert "Traceback" not in result.err


def test_predict_rejects_other_folders(addnorm, folder, tmp_path):
    result = addnorm("predict", str(tmp_path), str(folder / "data.csv"))
    assert result.code == 2 and "expected a folder written by `addnorm fit`" in result.err
    (tmp_path / "config.yaml").write_text("a: 1")
    result = addnorm("predict", str(tmp_path), str(folder / "data.csv"))
    assert result.code == 2 and "expected the config of a fit" in result.err


def test_predict_reads_codes_with_leading_zeros_like_fit(addnorm, tmp_path):
    """Regression test: types were inferred again in every file, and 01 became 1, an unseen code."""
    rows = [(code, index % 2) for index, code in enumerate(["01", "02", "A3", "B4"] * 20)]
    table, new, run = tmp_path / "t.csv", tmp_path / "new.csv", str(tmp_path / "run")
    table.write_text("code,y\n" + "".join(f"{code},{y}\n" for code, y in rows))
    new.write_text("code\n01\n02\n01\n02\n")
    keys = ("dim=8", "depth=1", "max_epochs=30", "lr=0.01", "dropout=0")
    assert addnorm("fit", str(table), "-t", "y", "-o", run, *keys, "--test-size=0").code == 0
    assert addnorm("predict", run, str(new)).out == "y\n0\n1\n0\n1\n"
    new.write_text("code\n7\n")
    assert addnorm("predict", run, str(new)).code == 0


@pytest.mark.parametrize("location", ["a_file", "a_file/run"])
def test_unwritable_output_is_rejected_before_training(addnorm, folder, tmp_path, location):
    (tmp_path / "a_file").write_text("")
    out = ("-o", str(tmp_path / location))
    result = addnorm("fit", str(folder / "data.csv"), "-t", "answer", *QUICK, *out)
    assert result.code == 2 and "epoch" not in result.err
    assert f"cannot write to {tmp_path / location} (" in result.err.splitlines()[-1]


def test_column_types_come_from_all_rows(addnorm, tmp_path):
    """A single unusual cell, or the only value of a column, may be a test row."""
    rows, test = 60, split_rows(pd.Series(range(60)), 0.2, classify=False)[1]
    frame = pd.DataFrame({"a": range(rows), "y": [1.5 * each + 0.25 for each in range(rows)]})
    frame["odd"] = [str(each) for each in range(rows)]
    frame.loc[test[0], "odd"] = "not a number"
    frame["only"] = None
    frame.loc[test[1], "only"] = 3.5
    frame.to_csv(tmp_path / "t.csv", index=False)
    run = str(tmp_path / "run")
    result = addnorm("fit", str(tmp_path / "t.csv"), "-t", "y", "-o", run, *QUICK)
    assert (result.code, "Gradient boosting could not" in result.err) == (0, False), result.err
    kinds = load(tmp_path / "run").encoder_
    assert dict(zip(kinds.names, kinds.kinds, strict=True)) == {
        "a": "numeric",
        "odd": "categorical",
        "only": "numeric",
    }
    assert len(addnorm("predict", run, str(tmp_path / "t.csv")).out.splitlines()) == 61


def test_more_classes_than_test_rows(addnorm, tmp_path):
    rows = "".join(f"{row},c{row % 20}\n" for row in range(60))
    (tmp_path / "t.csv").write_text(f"a,y\n{rows}")
    result = addnorm("fit", str(tmp_path / "t.csv"), "-t", "y", "-o", str(tmp_path / "r"), *QUICK)
    assert result.code == 0, result.err


def test_failing_baseline_keeps_the_fit(addnorm, tmp_path, monkeypatch):
    from addnorm.tabular import fit_run

    def fail(*_args, **_kwargs):
        raise ValueError("The least populated class in y has only 1 member")

    monkeypatch.setattr(fit_run, "gradient_boosting_scores", fail)
    frame, y = mixed(60)
    frame.assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "run"
    result = addnorm("fit", str(tmp_path / "t.csv"), "-t", "y", "-o", str(out), *QUICK)
    assert result.code == 0
    note = "Gradient boosting could not be fitted: The least populated class in y has only 1 member"
    assert note in result.err and note in (out / "report.html").read_text()
    assert addnorm("predict", str(out), str(tmp_path / "t.csv")).code == 0


def test_command_of_the_report_reproduces_the_run(addnorm, tmp_path):
    import re
    import shlex
    from html import unescape

    frame, y = mixed(60)
    frame.assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    keys = (*QUICK, "max_seconds=null", "early_stopping=false", "wiring=pre_ln", "lr=1e-3")
    one, two = tmp_path / "one", tmp_path / "two"
    types = ("--column-type", "count=categorical")
    result = addnorm("fit", str(tmp_path / "t.csv"), "-t", "y", "-o", str(one), *keys, *types)
    assert result.code == 0
    page = unescape((one / "report.html").read_text())
    command = shlex.split(re.search(r"addnorm fit [^<]*--seed 0", page)[0])
    assert "max_seconds=null" in command
    assert addnorm(*command[1:], "-o", str(two)).code == 0
    name = "model.safetensors"
    assert (one / name).read_bytes() == (two / name).read_bytes()


def test_predict_rejects_a_text_run_in_one_line(addnorm, tmp_path):
    (tmp_path / "config.yaml").write_text("task: translate\ndata: corpus\ndim: 8\n")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    done = addnorm("predict", str(tmp_path), str(tmp_path / "table.csv"))
    assert done.code == 2
    assert "expected a run of `addnorm fit`, got" in done.err
    assert "a run of task 'translate'" in done.err and done.err.count("\n") == 1


class _LabelEstimator:
    """Estimator that predicts labels which a spreadsheet would execute."""

    classes_ = np.array(["=1+1", "-2", "plain"], dtype=object)

    def predict(self, X):
        return self.classes_[: len(X)]

    def predict_proba(self, X):
        return np.eye(3)[: len(X)]


@pytest.mark.parametrize("scores", [[], ["--scores"]])
def test_safe_csv_escapes_labels_and_header(addnorm, tmp_path, monkeypatch, scores):
    table = tmp_path / "table.csv"
    table.write_text("a\n1\n2\n3\n")
    config = SimpleNamespace(target="=y", types={}, ids=(), drop=())
    monkeypatch.setattr("addnorm.tabular.fit_run.open_run", lambda run: (config, _LabelEstimator()))
    monkeypatch.setattr("addnorm.tabular.fit_run.align_columns", lambda frame, *_: (frame, []))
    plain = addnorm("predict", "RUN", str(table), *scores).out.splitlines()
    safe = addnorm("predict", "RUN", str(table), "--safe-csv", *scores).out.splitlines()
    assert [line.split(",")[0] for line in plain] == ["=y", "=1+1", "-2", "plain"]
    assert [line.split(",")[0] for line in safe] == ["'=y", "'=1+1", "-2", "plain"]
    assert [unescape_formula(line) for line in safe] == plain


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """Table with a key, a copy of the target and two features."""
    folder = tmp_path_factory.mktemp("keyed")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"key": [f"k{row:03}" for row in range(90)], "number": range(90)})
    frame["a"], frame["b"] = rng.normal(size=90), rng.choice(["u", "v"], 90)
    frame["y"] = frame["a"] + rng.normal(size=90)
    frame["copy"] = 10 * frame["y"] + 1
    frame.to_csv(folder / "data.csv", index=False)
    return folder


def test_suspicious_columns_are_named(addnorm, keyed):
    result = addnorm("fit", str(keyed / "data.csv"), *QUICK, "-t", "y", "-o", str(keyed / "all"))
    assert result.code == 0
    assert "column 'key' looks like an identifier" in result.err
    assert "column 'number' looks like an identifier" in result.err
    assert "column 'copy' determines the target" in result.err
    assert "column 'a'" not in result.err


def test_keys_are_copied_and_dropped_columns_are_not_needed(addnorm, keyed):
    out = str(keyed / "run")
    command = ["fit", str(keyed / "data.csv"), *QUICK, "-t", "y", "--id", "key", "--drop", "copy"]
    assert addnorm(*command, "--drop", "number", "-o", out, "quantiles=[0.1, 0.9]").code == 0
    assert load(out).feature_names_in_.tolist() == ["a", "b"]
    result = addnorm("predict", out, str(keyed / "data.csv"))
    lines = result.out.splitlines()
    assert (lines[0], lines[1][:5], len(lines)) == ("key,y 0.1,y 0.9", "k000,", 91)
    assert result.err == ""
    pd.read_csv(keyed / "data.csv")[["a", "b"]].to_csv(keyed / "new.csv", index=False)
    result = addnorm("predict", out, str(keyed / "new.csv"))
    assert (result.code, result.out.splitlines()[0]) == (0, "y 0.1,y 0.9")
    assert "no column 'key' to copy" in result.err


def test_runs_are_replaced_only_with_force(addnorm, keyed):
    out = str(keyed / "again")
    command = ["fit", str(keyed / "data.csv"), *QUICK, "-t", "y", "-o", out]
    assert addnorm(*command).code == 0
    result = addnorm(*command)
    assert result.code == 2
    assert "which contains a fit; choose another, or replace it with --force" in result.err
    assert addnorm(*command, "--force").code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--drop", "nope"], "unknown column 'nope'"),
        (["--id", "a", "--drop", "b", "--drop", "key"], None),
        ([f"--drop={name}" for name in ("key", "number", "a", "b", "copy")], "at least one of 5"),
    ],
)
def test_dropped_columns_must_exist_and_leave_one(addnorm, keyed, options, message):
    out = str(keyed / f"drop{len(options)}")
    result = addnorm("fit", str(keyed / "data.csv"), *QUICK, "-t", "y", "-o", out, *options)
    assert result.code == (0 if message is None else 2)
    assert message is None or message in result.err
