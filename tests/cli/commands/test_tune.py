"""`addnorm tune`."""

import json

import pandas as pd
import pytest

from addnorm.tabular.fit_run import open_run
from tests.tabular.sample_tables import mixed

QUICK = ("model=mlp", "dim=8", "depth=1", "max_epochs=1", "calibration=none", "--cv", "2")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "table.csv"
    frame, y = mixed(80)
    frame.assign(answer=y, key=range(1000, 1080)).to_csv(path, index=False)
    return path


def test_tune_searches_fits_and_predicts(addnorm, table, tmp_path):
    out = tmp_path / "search"
    command = ("tune", str(table), "-t", "answer", "-o", str(out), *QUICK, "--id", "key")
    result = addnorm(*command, "--trials", "3")
    assert result.code == 0, result.err
    assert "trial 2: neg_log_loss" in result.err and "best of 3 trials" in result.err
    trials = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    assert [each["number"] for each in trials] == [0, 1, 2] and trials[0]["params"] == {}
    best = max(trials, key=lambda each: sum(each["scores"]))
    config, estimator = open_run(out)
    assert {name: config.params[name] for name in best["params"]} == best["params"]
    assert estimator.get_params()["dim"] == 8  # fixed
    page = (out / "report.html").read_text()
    for text in ("Score over trials", "Best trials", "Comparison with gradient boosting", "wiring"):
        assert text in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    predicted = addnorm("predict", str(out), str(table))
    assert predicted.code == 0 and predicted.out.startswith("key,answer\n1000,")

    again = addnorm(*command, "--trials", "3")
    assert again.code == 0 and "already contains this search and its fit" in again.err
    more = addnorm(*command, "--trials", "4")
    assert more.code == 0 and "resuming after 3 stored trials" in more.err
    assert len((out / "trials.jsonl").read_text().splitlines()) == 4
    other = addnorm(*command, "--trials", "4", "--seed", "1")
    assert other.code == 2 and "choose another folder" in other.err
    forced = addnorm(*command, "--trials", "1", "--seed", "1", "--force")
    assert forced.code == 0 and len((out / "trials.jsonl").read_text().splitlines()) == 1


def test_tune_of_a_regression_without_test_rows(addnorm, table, tmp_path):
    frame = pd.read_csv(table).assign(price=lambda each: each["count"] * 1.5 + 0.25)
    frame.drop(columns="answer").to_csv(tmp_path / "prices.csv", index=False)
    result = addnorm(
        *(
            "tune",
            str(tmp_path / "prices.csv"),
            "-t",
            "price",
            "-o",
            str(tmp_path / "out"),
            *QUICK[:4],
        ),
        *(
            "--trials",
            "2",
            "--cv",
            "2",
            "--test-size",
            "0",
            "--searcher",
            "tpe",
            "--task",
            "regress",
        ),
    )
    assert result.code == 0, result.err
    assert "neg_root_mean_squared_error" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-t", "answer", "--searcher", "grid"), "unknown searcher 'grid'"),
        (("-t", "answer", "--trials", "0"), "n_trials: expected an integer >= 1, got 0"),
        (("-t", "answer", "--max-seconds", "-5"), "max_seconds: expected a positive number"),
        (("-t", "answer", "--scoring", "beauty"), "scoring: expected a name"),
        (("-t", "answer", "depht=2"), "did you mean 'depth'"),
        (("-t", "answer", "--test-size", "2"), "--test-size: expected a fraction in [0, 1)"),
        ((), "--target: expected the name of the column to predict"),
        (("-t", "anser"), "did you mean 'answer'"),
    ],
)
def test_wrong_arguments_are_refused(addnorm, table, tmp_path, arguments, message):
    result = addnorm("tune", str(table), "-o", str(tmp_path / "out"), *arguments)
    assert result.code == 2 and message in result.err
    assert "Traceback" not in result.err


def test_tune_does_not_replace_a_fit(addnorm, table, tmp_path):
    (tmp_path / "estimator.json").write_text("{}")
    result = addnorm("tune", str(table), "-t", "answer", "-o", str(tmp_path))
    assert result.code == 2 and "which contains a fit" in result.err
