"""`addnorm classify`: a label for every line."""

import json

import pytest

from addnorm.tasks import classify_texts
from tests.cli.sample_runs import run_command_fixture, runs_fixture  # noqa: F401

LINES = b"ab cab\n\ndad\n"
TEXTS = ["ab cab", "", "dad"]


def test_one_label_per_line(run_command, runs):
    result = run_command("classify", "classify", lines=LINES)
    expected = [prediction.label or "" for prediction in classify_texts(runs["classify"], TEXTS)]
    assert (result.code, result.out.splitlines(), result.err) == (0, expected, "")
    assert run_command("classify", "classify", "--chunk-lines", "1", lines=LINES).out == result.out


def test_scores_follow_labels(run_command, runs):
    result = run_command("classify", "classify", "--scores", lines=LINES)
    rows = [line.split("\t") for line in result.out.splitlines()]
    prediction = next(classify_texts(runs["classify"], TEXTS))
    assert rows[0] == [prediction.label, f"{prediction.probability:.4f}"]
    assert rows[1] == [""]


def test_json_contains_all_probabilities(run_command, runs):
    rows = [
        json.loads(line)
        for line in run_command("classify", "classify", "--json", lines=LINES).out.splitlines()
    ]
    assert [row["input"] for row in rows] == TEXTS
    assert set(rows[0]["probabilities"]) == set(runs["classify"].labels)
    assert sum(rows[0]["probabilities"].values()) == pytest.approx(1)
    assert (rows[1]["label"], rows[1]["probabilities"]) == (None, {})


def test_truncated_lines_are_reported(run_command):
    result = run_command("classify", "classify", lines=b"ab" * 30 + b"\nab\n")
    assert result.err == "addnorm: 1 of 2 lines were too long and truncated\n"


def test_attention_report_is_written(run_command, tmp_path):
    page = tmp_path / "attention.html"
    result = run_command("classify", "classify", "--attention", page, lines=LINES)
    assert result.code == 0 and "Attention maps" in page.read_text(encoding="utf-8")


def test_unwritable_attention_report_is_rejected_before_output(run_command, tmp_path):
    result = run_command("classify", "classify", "--attention", tmp_path, lines=LINES)
    assert (result.code, result.out) == (2, "")
    assert (
        f"--attention: expected a file in a writable folder, got {tmp_path} (it is a folder)"
        in result.err
    )


def test_attention_report_without_outputs_is_rejected(run_command, tmp_path):
    result = run_command("classify", "classify", "--attention", tmp_path / "page.html", lines=b"\n")
    assert result.code == 2 and "expected at least one example, got none" in result.err


def test_run_of_another_task_is_rejected(run_command):
    result = run_command("classify", "lm", lines=LINES)
    assert result.code == 2 and "try `addnorm generate`" in result.err
