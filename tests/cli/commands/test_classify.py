"""`addnorm classify`: a label for every line."""

import json

import pytest

from addnorm.tasks import classify_texts
from tests.cli.sample_runs import ask_fixture, runs_fixture  # noqa: F401

LINES = b"ab cab\n\ndad\n"
TEXTS = ["ab cab", "", "dad"]


def test_one_label_a_line(ask, runs):
    done = ask("classify", "classify", lines=LINES)
    wanted = [verdict.label or "" for verdict in classify_texts(runs["classify"], TEXTS)]
    assert (done.code, done.out.splitlines(), done.err) == (0, wanted, "")
    assert ask("classify", "classify", "--chunk-lines", "1", lines=LINES).out == done.out


def test_scores_stand_behind_labels(ask, runs):
    done = ask("classify", "classify", "--scores", lines=LINES)
    rows = [line.split("\t") for line in done.out.splitlines()]
    verdict = next(classify_texts(runs["classify"], TEXTS))
    assert rows[0] == [verdict.label, f"{verdict.probability:.4f}"]
    assert rows[1] == [""]


def test_json_says_all(ask, runs):
    rows = [
        json.loads(line)
        for line in ask("classify", "classify", "--json", lines=LINES).out.splitlines()
    ]
    assert [row["input"] for row in rows] == TEXTS
    assert set(rows[0]["probabilities"]) == set(runs["classify"].labels)
    assert sum(rows[0]["probabilities"].values()) == pytest.approx(1)
    assert (rows[1]["label"], rows[1]["probabilities"]) == (None, {})


def test_what_was_cut_is_told(ask):
    done = ask("classify", "classify", lines=b"ab" * 30 + b"\nab\n")
    assert done.err == "addnorm: 1 of 2 lines were too long and truncated\n"


def test_attention_is_drawn(ask, tmp_path):
    page = tmp_path / "attention.html"
    done = ask("classify", "classify", "--attention", page, lines=LINES)
    assert done.code == 0 and "Attention maps" in page.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_refused_before_an_answer(ask, tmp_path):
    done = ask("classify", "classify", "--attention", tmp_path, lines=LINES)
    assert (done.code, done.out) == (2, "")
    assert (
        f"--attention: expected a file in a writable folder, got {tmp_path} (it is a folder)"
        in done.err
    )


def test_attention_of_nothing_is_told(ask, tmp_path):
    done = ask("classify", "classify", "--attention", tmp_path / "page.html", lines=b"\n")
    assert done.code == 2 and "no attention to draw" in done.err


def test_a_run_for_something_else_is_refused(ask):
    done = ask("classify", "lm", lines=LINES)
    assert done.code == 2 and "try `addnorm generate`" in done.err
