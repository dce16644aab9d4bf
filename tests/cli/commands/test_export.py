"""`addnorm export`, and the commands that read what it wrote."""

import io
import json
import sys

import numpy as np
import pandas as pd
import pytest

from tests.exporters.conftest import run_folder_fixture  # noqa: F401 a fixture

LINES = "ab ba\na bad cab\n\ndad\n"


@pytest.fixture(name="with_lines")
def with_lines_fixture(addnorm, monkeypatch):
    """Return a function that runs a command with lines on standard input."""

    def run(*arguments):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES.encode())))
        return addnorm(*map(str, arguments))

    return run


def test_classify_reads_an_export_through_its_engine(run_folder, addnorm, with_lines, tmp_path):
    run, out = run_folder("classify"), tmp_path / "out"
    result = addnorm("export", str(run), "--to", "torch", "-o", str(out))
    assert (result.code, result.err) == (0, "")
    assert "exact" in result.out and "identical labels" in result.out and str(out) in result.out
    before, after = (with_lines("classify", folder, "--scores") for folder in (run, out))
    assert before.code == after.code == 0 and before.out == after.out
    wrong = with_lines("translate", out)
    assert wrong.code == 2 and "expected a run trained for 'translate'" in wrong.err
    page = tmp_path / "page.html"
    refused = with_lines("classify", out, "--attention", page)
    assert refused.code == 2 and "whose attention cannot be observed" in refused.err
    assert refused.out == "" and not page.exists()
    before, after = (
        json.loads(with_lines("evaluate", folder, "--json").out) for folder in (run, out)
    )
    assert after["accuracy"] == before["accuracy"]
    assert after["loss"] == pytest.approx(before["loss"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch"])
@pytest.mark.parametrize(
    ("task", "command"),
    [
        ("translate", ("translate",)),
        ("translate", ("translate", "--beam", "1", "--scores")),
        ("lm", ("generate", "--beam", "2", "--max-new-tokens", "9")),
        ("lm", ("generate", "--seed", "3", "--num-samples", "2")),
        ("mlm", ("fill-mask",)),
    ],
)
def test_commands_print_what_they_print_for_the_run(
    run_folder, addnorm, with_lines, tmp_path, task, command, to
):
    run, out = run_folder(task), tmp_path / "out"
    assert addnorm("export", str(run), "--to", to, "-o", str(out)).code == 0
    verb, *options = command
    before, after = (with_lines(verb, folder, *options) for folder in (run, out))
    assert before.code == after.code == 0 and before.out == after.out


def test_predict_reads_an_export(addnorm, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=90), "b": rng.choice(["x", "y"], 90)})
    frame["label"] = np.where(frame.a + (frame.b == "x") > 0.3, "=high", "low")
    frame.to_csv(tmp_path / "t.csv", index=False)
    run, out, new = tmp_path / "run", tmp_path / "out", tmp_path / "new.csv"
    pd.DataFrame({"b": ["x", "q", None], "a": [0.5, None, -9.0]}).to_csv(new, index=False)
    fit = ("fit", str(tmp_path / "t.csv"), "--target", "label", "-o", str(run))
    keys = ("model=ft_transformer", "dim=8", "depth=1", "heads=2", "max_epochs=1")
    assert addnorm(*fit, *keys).code == 0
    result = addnorm("export", str(run), "--to", "torch", "-o", str(out), "--json")
    report = json.loads(result.out)
    assert result.code == 0 and report["kind"] == "table" and report["grade"] == "rounding"
    assert report["proof"]["inputs"].startswith("test rows of")
    same, total = report["proof"]["labels"]
    assert same == total == report["proof"]["sequences"] > 0
    for options in ((), ("--scores", "--safe-csv")):
        before, after = (
            addnorm("predict", str(folder), str(new), *options) for folder in (run, out)
        )
        assert before.code == after.code == 0 and before.out == after.out
    wrong = addnorm("classify", str(out))
    assert wrong.code == 2 and "got that of an estimator" in wrong.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing", "--to", "onnx", "-o", "out"), "expected the folder of a run"),
        (("missing", "--to", "onyx", "-o", "out"), "did you mean 'onnx'"),
        (("missing", "-o", "out"), "Missing option '--to'"),
        (("missing", "--to", "torch", "-o", "."), "which contains files"),
    ],
)
def test_errors_are_one_line_with_exit_code_2(addnorm, monkeypatch, tmp_path, arguments, message):
    (tmp_path / "keep.txt").touch()
    monkeypatch.chdir(tmp_path)
    result = addnorm("export", *arguments)
    assert result.code == 2 and message in result.err and result.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["keep.txt"]


def test_a_failed_comparison_has_exit_code_1(run_folder, addnorm, tmp_path, monkeypatch):
    monkeypatch.setattr("addnorm.exporters.targets.base.ExportTarget.tolerance", lambda *_: -1.0)
    run, out = run_folder("classify"), tmp_path / "out"
    result = addnorm("export", str(run), "--to", "torch", "-o", str(out))
    assert result.code == 1 and "nothing was written" in result.err
    assert list(tmp_path.iterdir()) == []
