"""`addnorm evaluate`: metrics as a table or as JSON."""

import json
import math

import pytest

from addnorm.tasks import evaluate
from tests.cli.sample_runs import run_command_fixture, runs_fixture  # noqa: F401

METRICS = {
    "translate": {"bleu", "chrf", "signature", "loss", "perplexity", "beam"},
    "lm": {"perplexity", "word_perplexity", "bits_per_character", "bits_per_byte", "loss"},
    "mlm": {"loss", "perplexity", "accuracy", "predicted"},
    "classify": {"accuracy", "macro_f1", "f1", "log_loss", "calibration_error"},
}


@pytest.mark.parametrize("task", METRICS)
def test_json_equals_evaluate(run_command, runs, task):
    metrics = json.loads(run_command("evaluate", task, "--json").out)
    assert metrics == evaluate(runs[task])
    assert METRICS[task] <= set(metrics)


@pytest.mark.parametrize("task", METRICS)
def test_table_has_a_line_per_metric(run_command, runs, task):
    result = run_command("evaluate", task, "--split", "valid")
    assert (result.code, result.err) == (0, "")
    names = [line.split()[0] for line in result.out.splitlines()]
    assert METRICS[task] <= set(names)
    if task == "classify":
        assert names.count("f1") == len(runs[task].labels)


def test_decoding_options_are_passed(run_command):
    assert json.loads(run_command("evaluate", "translate", "--json").out)["beam"] == 5
    arguments = ("--beam", "1", "--length-penalty", "mean", "--json")
    metrics = json.loads(run_command("evaluate", "translate", *arguments).out)
    assert (metrics["beam"], metrics["length_penalty"]) == (1, "mean")


def test_infinity_is_a_string_in_json(run_command, runs, monkeypatch):
    monkeypatch.setattr(
        "addnorm.tasks.evaluation.evaluate", lambda *_, **__: {"perplexity": math.inf, "loss": 1.0}
    )
    metrics = json.loads(run_command("evaluate", "lm", "--json").out, parse_constant=pytest.fail)
    assert metrics == {"perplexity": "inf", "loss": 1.0}


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        ("lm", ["--split", "dev"], "has no 'dev' split; it has train, valid, test"),
        ("lm", ["--beam", "3"], "expected none for task 'lm', which decodes nothing"),
        ("lm", ["--data", "nowhere"], "no corpus at nowhere: there is no such folder"),
        ("translate", ["--beam", "0"], "beam: expected a whole number from 1 to 10,000, got 0"),
    ],
)
def test_invalid_arguments_are_one_line_errors(run_command, task, arguments, message):
    result = run_command("evaluate", task, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err and result.err.count("\n") == 1
