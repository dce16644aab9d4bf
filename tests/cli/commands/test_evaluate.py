"""`addnorm evaluate`: the scores as a table, or as JSON."""

import json
import math

import pytest

from addnorm.tasks import evaluate
from tests.cli.sample_runs import ask_fixture, runs_fixture  # noqa: F401

NAMES = {
    "translate": {"bleu", "chrf", "signature", "loss", "perplexity", "beam"},
    "lm": {"perplexity", "word_perplexity", "bits_per_character", "bits_per_byte", "loss"},
    "mlm": {"loss", "perplexity", "accuracy", "predicted"},
    "classify": {"accuracy", "macro_f1", "f1", "log_loss", "calibration_error"},
}


@pytest.mark.parametrize("task", NAMES)
def test_json_is_what_was_measured(ask, runs, task):
    found = json.loads(ask("evaluate", task, "--json").out)
    assert found == evaluate(runs[task])
    assert NAMES[task] <= set(found)


@pytest.mark.parametrize("task", NAMES)
def test_the_table_has_a_line_for_each(ask, runs, task):
    done = ask("evaluate", task, "--split", "valid")
    assert (done.code, done.err) == (0, "")
    words = [line.split()[0] for line in done.out.splitlines()]
    assert NAMES[task] <= set(words)
    if task == "classify":
        assert words.count("f1") == len(runs[task].labels)


def test_the_beam_is_ours_to_choose(ask):
    assert json.loads(ask("evaluate", "translate", "--json").out)["beam"] == 5
    arguments = ("--beam", "1", "--length-penalty", "mean", "--json")
    found = json.loads(ask("evaluate", "translate", *arguments).out)
    assert (found["beam"], found["length_penalty"]) == (1, "mean")


def test_infinity_is_a_word_in_json(ask, runs, monkeypatch):
    monkeypatch.setattr(
        "addnorm.tasks.evaluation.evaluate", lambda *_, **__: {"perplexity": math.inf, "loss": 1.0}
    )
    found = json.loads(ask("evaluate", "lm", "--json").out, parse_constant=pytest.fail)
    assert found == {"perplexity": "inf", "loss": 1.0}


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        ("lm", ["--split", "dev"], "has no 'dev' part; it has train, valid, test"),
        ("lm", ["--beam", "3"], "expected none for task 'lm', which decodes nothing"),
        ("lm", ["--data", "nowhere"], "no corpus at nowhere: there is no such folder"),
        ("translate", ["--beam", "0"], "beam: expected a whole number from 1, got 0"),
    ],
)
def test_mistakes_are_told_in_one_line(ask, task, arguments, message):
    done = ask("evaluate", task, *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err and done.err.count("\n") == 1
