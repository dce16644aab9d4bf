"""`addnorm fit` and `addnorm predict`: a table in, a folder and a page; rows in, lines out."""

import gzip

import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import yaml

from addnorm.tabular import load
from addnorm.tabular.task_setup import split_rows
from tests.tabular.sample_tables import mixed

QUICK = ("dim=8", "depth=1", "heads=2", "max_epochs=2")


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


def test_a_fit_says_what_it_found_and_leaves_a_folder(addnorm, folder):
    out = folder / "told"
    done = addnorm("fit", str(folder / "data.csv"), *QUICK, "-t", "answer", "-o", str(out))
    assert (done.code, done.out) == (0, "")
    kinds = {line.split()[0]: line.split()[1] for line in done.err.splitlines() if line.split()}
    assert [kinds[name] for name in ("number", "flag", "colour", "day")] == [
        *("numeric", "boolean", "categorical", "datetime")
    ]
    assert "80 rows, 7 columns; classify 'answer'" in done.err
    assert "gradient boosting" in done.err and "epoch 1/2" in done.err
    assert {path.name for path in out.iterdir() if path.name != ".lock"} == {
        *("config.yaml", "estimator.json", "model.safetensors", "report.html", "rows.jsonl")
    }
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert (config["target"], config["task"], config["params"]["dim"]) == ("answer", "classify", 8)


def test_the_page_shows_curves_calibration_importance_wiring_and_trees(run):
    page = (run / "report.html").read_text()
    for words in (
        *("gradient boosting", "Loss over epochs", "Reliability", "Importance of columns"),
        *("Block diagram", "b2t", "colour", "addnorm fit "),
    ):
        assert words in page, words
    assert "http://" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    "name", ["data.csv", "data.tsv", "data.csv.gz", "data.parquet", "data.arrow"]
)
def test_every_format_is_predicted_alike(addnorm, folder, run, name):
    done = addnorm("predict", str(run), str(folder / name))
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[0] == "answer" and len(lines) == 81
    assert set(lines[1:]) <= {"yes", "no"}
    assert done.out == addnorm("predict", str(run), str(folder / "data.csv")).out


def test_scores_are_probabilities(addnorm, folder, run):
    done = addnorm("predict", str(run), str(folder / "data.csv"), "--scores")
    lines = [line.split(",") for line in done.out.splitlines()]
    assert lines[0] == ["answer", "p(no)", "p(yes)"]
    for answer, no, yes in lines[1:]:
        assert float(no) + float(yes) == pytest.approx(1, abs=1e-5)
        assert answer == ("yes" if float(yes) > float(no) else "no")


def test_columns_are_matched_by_name(addnorm, folder, run, tmp_path):
    frame = pd.read_csv(folder / "data.csv")
    wanted = addnorm("predict", str(run), str(folder / "data.csv")).out
    frame[sorted(frame)].assign(extra=1).to_csv(tmp_path / "other.csv", index=False)
    done = addnorm("predict", str(run), str(tmp_path / "other.csv"))
    assert done.out == wanted
    assert done.err == "addnorm: columns that were not seen at fit time are left out: extra\n"
    frame.drop(columns=["flag", "day"]).to_csv(tmp_path / "less.csv", index=False)
    done = addnorm("predict", str(run), str(tmp_path / "less.csv"))
    assert (done.code, done.out) == (2, "")
    assert "The table lacks columns seen at fit time: 'flag', 'day'" in done.err


def test_a_target_that_stands_in_the_new_table_is_not_read(addnorm, folder, tmp_path):
    table, new, run = tmp_path / "t.csv", tmp_path / "new.csv", str(tmp_path / "run")
    table.write_text("a,y\n" + "".join(f"{row},{row * 1.5}\n" for row in range(30)))
    assert addnorm("fit", str(table), "-t", "y", "-o", run, *QUICK, "--holdout=0").code == 0
    new.write_text("a,y\n1,unknown\n2,\n")
    done = addnorm("predict", run, str(new))
    assert (done.code, len(done.out.splitlines()), done.err) == (0, 3, "")


def test_a_number_is_regressed_and_has_no_probabilities(addnorm, folder, tmp_path):
    out = str(tmp_path / "run")
    done = addnorm(
        *("fit", str(folder / "data.csv"), *QUICK, "-t", "price", "-o", out),
        *("--type", "count=categorical", "--holdout", "0", "lr=1e-3"),
    )
    assert done.code == 0 and "regress 'price'" in done.err and "nothing held out" in done.err
    assert addnorm("predict", out, str(folder / "data.csv")).out.startswith("price\n")
    done = addnorm("predict", out, str(folder / "data.csv"), "--scores")
    assert done.code == 2 and "predicts a number, which has no probabilities" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("data.csv",), "which column is to be predicted? say --target COLUMN"),
        (("data.csv", "-t", "anser"), "unknown target column 'anser'; did you mean 'answer'?"),
        (("data.csv", "-t", "answer", "dimm=8"), "unknown parameter 'dimm'; did you mean 'dim'"),
        (("data.csv", "-t", "answer", "dim"), "'dim' is no KEY=VALUE"),
        (("data.csv", "-t", "answer", "--type", "count"), "'count' is no COLUMN=TYPE"),
        (("data.csv", "-t", "answer", "--type", "count=int"), "unknown column type 'int'"),
        (("data.csv", "-t", "answer", "--task", "sort"), "--task is classify, regress or auto"),
        (("data.csv", "-t", "answer", "--holdout", "1"), "holdout is a share from 0 to below 1"),
        (("data.csv", "-t", "answer", "wiring=postln"), "unknown wiring 'postln'"),
        (("holes.csv", "-t", "a"), "Input y contains NaN: the target 'a' is absent in 1 of 3"),
        (("none.csv", "-t", "x"), "none.csv"),
        (("data.doc", "-t", "x"), "the name does not tell the format"),
        (("text.csv", "-t", "x"), "is no table"),
        (("empty.csv", "-t", "x"), "is no table"),
        (("twice.csv", "-t", "a"), "has several columns called 'a'"),
        (("one.csv", "-t", "a"), "'a' is the only column"),
        (("same.csv", "-t", "a"), "only one class"),
        (("level.csv", "-t", "a", "--task", "regress"), "needs a target that varies"),
        (("hollow.csv", "-t", "a"), "columns without any value: 'b'"),
        (("broken.parquet", "-t", "a"), "is no table"),
        (("days.csv", "-t", "a"), "the target 'a' holds moments"),
        (("data.csv", "-t", "answer", "depth=["), "'[' is no value"),
        (("data.csv", "-t", "answer", "max_seconds=abc"), "max_seconds is a positive number"),
        (("data.csv", "-t", "answer", "validation_fraction=x"), "validation_fraction is a share"),
        (("data.csv", "-t", "answer", "average=5"), "average is a share between 0 and 1, got 5"),
        (("data.csv", "-t", "answer", "device=[a]"), "device is a name"),
        (("data.csv", "-t", "answer", "device=cuda:99"), "device 'cuda:99' cannot be used"),
        (("data.csv", "-t", "answer", "model=[a]"), "unknown model"),
        (("data.csv", "-t", "answer", "column_types=zip"), "column_types='zip'"),
        (("latin.csv", "-t", "a"), "is no UTF-8 text"),
        (("wild.csv", "-t", "a"), "Input y contains infinity: the target 'a' is infinite in 1 of"),
    ],
)
def test_mistakes_end_with_one_line_and_2(addnorm, folder, tmp_path, arguments, words):
    made = {
        "text.csv": 'a,b\n1\n"2,3,4\n',
        "empty.csv": "",
        "twice.csv": "a,a\n1,2\n",
        "holes.csv": "a,b\n1,1\n,2\n3,3\n",
        "days.csv": "a,b\n2026-01-01,1\n2026-01-02,2\n",
        "one.csv": "a\n1\n2\n",
        "same.csv": "a,b\n" + "x,1\n" * 20,
        "level.csv": "a,b\n" + "1,1\n1,2\n" * 10,
        "hollow.csv": "a,b\n" + "x,\ny,\n" * 20,
        "broken.parquet": "nothing",
        "data.doc": "a",
        "wild.csv": "a,b\n" + "1.5,1\n2.5,2\n" * 10 + "inf,3\n",
        "latin.csv": "a,\udcf6\n1,2\n",
    }
    name, *rest = arguments
    path = tmp_path / name if name in made else folder / name
    if name in made:
        path.write_text(made[name], errors="surrogateescape")
    done = addnorm("fit", str(path), *rest, "-o", str(tmp_path / "run"))
    last = done.err.splitlines()[-1]
    assert (done.code, done.out) == (2, "")
    assert words in last and last.startswith("addnorm: ")
    assert "Traceback" not in done.err


def test_a_folder_that_is_no_fit(addnorm, folder, tmp_path):
    done = addnorm("predict", str(tmp_path), str(folder / "data.csv"))
    assert done.code == 2 and "wanted a folder that `addnorm fit` made" in done.err
    (tmp_path / "config.yaml").write_text("a: 1")
    done = addnorm("predict", str(tmp_path), str(folder / "data.csv"))
    assert done.code == 2 and "is not the config of a fit" in done.err


def test_codes_with_zeros_mean_at_prediction_what_they_meant_at_fit(addnorm, tmp_path):
    """Types were found anew in every file: 01 became 1, a category that nobody knew."""
    rows = [(code, place % 2) for place, code in enumerate(["01", "02", "A3", "B4"] * 20)]
    table, new, run = tmp_path / "t.csv", tmp_path / "new.csv", str(tmp_path / "run")
    table.write_text("code,y\n" + "".join(f"{code},{y}\n" for code, y in rows))
    new.write_text("code\n01\n02\n01\n02\n")
    learn = ("dim=8", "depth=1", "heads=2", "max_epochs=30", "lr=0.01", "dropout=0", "--holdout=0")
    assert addnorm("fit", str(table), "-t", "y", "-o", run, *learn).code == 0
    assert addnorm("predict", run, str(new)).out == "y\n0\n1\n0\n1\n"
    new.write_text("code\n7\n")
    assert addnorm("predict", run, str(new)).code == 0


@pytest.mark.parametrize("place", ["a_file", "a_file/run"])
def test_a_place_that_cannot_be_written_is_refused_before_training(
    addnorm, folder, tmp_path, place
):
    (tmp_path / "a_file").write_text("")
    out = ("-o", str(tmp_path / place))
    done = addnorm("fit", str(folder / "data.csv"), "-t", "answer", *QUICK, *out)
    assert done.code == 2 and "epoch" not in done.err
    assert f"cannot write into {tmp_path / place} (" in done.err.splitlines()[-1]


def test_types_are_those_of_the_whole_file_however_it_is_divided(addnorm, tmp_path):
    """One odd cell, or the only one, may stand among the rows that are held out."""
    rows, held = 60, split_rows(pd.Series(range(60)), 0.2, classify=False)[1]
    frame = pd.DataFrame({"a": range(rows), "y": [1.5 * each + 0.25 for each in range(rows)]})
    frame["odd"] = [str(each) for each in range(rows)]
    frame.loc[held[0], "odd"] = "none of them"
    frame["only"] = None
    frame.loc[held[1], "only"] = 3.5
    frame.to_csv(tmp_path / "t.csv", index=False)
    run = str(tmp_path / "run")
    done = addnorm("fit", str(tmp_path / "t.csv"), "-t", "y", "-o", run, *QUICK)
    assert (done.code, "Gradient boosting could not" in done.err) == (0, False), done.err
    kinds = load(tmp_path / "run").encoder_
    assert dict(zip(kinds.names, kinds.kinds, strict=True)) == {
        "a": "numeric",
        "odd": "categorical",
        "only": "numeric",
    }
    assert len(addnorm("predict", run, str(tmp_path / "t.csv")).out.splitlines()) == 61


def test_more_classes_than_rows_that_are_held_out(addnorm, tmp_path):
    rows = "".join(f"{row},c{row % 20}\n" for row in range(60))
    (tmp_path / "t.csv").write_text(f"a,y\n{rows}")
    done = addnorm("fit", str(tmp_path / "t.csv"), "-t", "y", "-o", str(tmp_path / "r"), *QUICK)
    assert done.code == 0, done.err


def test_a_fit_is_kept_when_its_rival_fails(addnorm, tmp_path, monkeypatch):
    from addnorm.tabular import fit_run as run

    def fails(*_args, **_options):
        raise ValueError("The least populated class in y has only 1 member")

    monkeypatch.setattr(run, "gradient_boosting_scores", fails)
    frame, y = mixed(60)
    frame.assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "run"
    done = addnorm("fit", str(tmp_path / "t.csv"), "-t", "y", "-o", str(out), *QUICK)
    assert done.code == 0
    told = "Gradient boosting could not be fitted: The least populated class in y has only 1 member"
    assert told in done.err and told in (out / "report.html").read_text()
    assert addnorm("predict", str(out), str(tmp_path / "t.csv")).code == 0


def test_the_command_of_the_page_does_it_again(addnorm, tmp_path):
    import re
    import shlex
    from html import unescape

    frame, y = mixed(60)
    frame.assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    keys = (*QUICK, "max_seconds=null", "early_stopping=false", "wiring=pre_ln", "lr=1e-3")
    one, two = tmp_path / "one", tmp_path / "two"
    types = ("--type", "count=categorical")
    done = addnorm("fit", str(tmp_path / "t.csv"), "-t", "y", "-o", str(one), *keys, *types)
    assert done.code == 0
    page = unescape((one / "report.html").read_text())
    command = shlex.split(re.search(r"addnorm fit [^<]*--seed 0", page)[0])
    assert "max_seconds=null" in command
    assert addnorm(*command[1:], "-o", str(two)).code == 0
    name = "model.safetensors"
    assert (one / name).read_bytes() == (two / name).read_bytes()
