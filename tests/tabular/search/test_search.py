"""`TabularSearch`: conventions of scikit-learn, pruning, time budget and resumption."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.model_selection import GroupKFold, cross_val_score

from addnorm import UserError
from addnorm.tabular import Float, TabularSearch
from addnorm.tabular.search.evaluation import negative_log_loss
from addnorm.tabular.search.searchers import (
    HalvingSearcher,
    RandomSearcher,
    TpeSearcher,
    has_worse_scores,
)
from addnorm.tabular.search.spaces import search_space
from addnorm.tabular.search.trials import Trial, TrialLog, best_trial, make_cv_results
from tests.tabular.sample_tables import FRAME, LABELS, NUMBERS, SUMS, classifier, regressor

SPACE = {"lr": Float(1e-4, 1e-2, log=True), "norm": ["layer", "rms"]}


def quick_search(estimator=None, **changes):
    options = {"space": SPACE, "n_trials": 3, "cv": 2, "random_state": 0} | changes
    return TabularSearch(estimator or classifier(model="mlp", max_epochs=1), **options)


def make_trial(number, score=None, *, losses=(), state="complete", fraction=1.0, params=None):
    scores = [] if score is None else [score, score]
    return Trial(number, params or {}, state, scores, [1.0], list(losses), fraction)


@pytest.fixture(scope="module")
def search():
    return quick_search().fit(FRAME, LABELS)


def test_search_has_the_attributes_of_scikit_learn(search):
    results = search.cv_results_
    assert len(results["params"]) == len(results["mean_test_score"]) == 3
    assert {"split0_test_score", "std_test_score", "rank_test_score", "mean_fit_time"} <= set(
        results
    )
    assert results["params"][0] == {} and results["param_lr"].mask.tolist() == [True, False, False]
    assert search.best_score_ == results["mean_test_score"].max()
    assert search.best_params_ == results["params"][search.best_index_]
    assert results["rank_test_score"][search.best_index_] == 1
    assert is_classifier(search) and not is_regressor(search)
    assert is_regressor(quick_search(regressor(model="mlp")))


def test_best_estimator_is_fitted_to_all_rows(search):
    expected = clone(search.estimator).set_params(**search.best_params_).fit(FRAME, LABELS)
    assert np.array_equal(search.predict_proba(FRAME), expected.predict_proba(FRAME))
    assert np.array_equal(search.predict(FRAME), expected.predict(FRAME))
    assert search.score(FRAME, LABELS) == negative_log_loss(expected, FRAME, LABELS)
    assert search.classes_.tolist() == ["no", "yes"]
    assert search.n_features_in_ == FRAME.shape[1]
    assert search.feature_names_in_.tolist() == list(FRAME.columns)


def test_search_is_reproducible_and_clonable(search):
    again = clone(search).fit(FRAME, LABELS)
    assert again.cv_results_["params"] == search.cv_results_["params"]
    assert np.array_equal(
        again.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"]
    )


def test_search_of_a_regressor_on_arrays_with_groups_and_weights():
    search = quick_search(regressor(model="mlp", max_epochs=1), cv=GroupKFold(2), n_trials=2)
    search.fit(NUMBERS, SUMS, np.ones(len(SUMS)), groups=np.arange(len(SUMS)) // 10)
    assert search.n_splits_ == 2 and search.best_score_ < 0  # the negative RMSE
    assert search.predict(NUMBERS).shape == SUMS.shape


def test_search_works_inside_cross_validation():
    scores = cross_val_score(quick_search(n_trials=2), FRAME, LABELS, cv=2)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("searcher", ["random", "halving", "tpe"])
def test_a_resumed_search_equals_one_that_was_not_interrupted(searcher, tmp_path):
    options = {"searcher": searcher, "n_trials": 4, "folder": tmp_path / "whole", "refit": False}
    whole = quick_search(**options).fit(FRAME, LABELS)
    lines = (tmp_path / "whole" / "trials.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "search.json").write_text((tmp_path / "whole" / "search.json").read_text())
    (tmp_path / "cut" / "trials.jsonl").write_text("".join(lines[:2]))
    resumed = quick_search(**options | {"folder": tmp_path / "cut"}).fit(FRAME, LABELS)
    assert resumed.cv_results_["params"] == whole.cv_results_["params"]
    assert [each.scores for each in resumed.trials_] == [each.scores for each in whole.trials_]


@pytest.mark.slow
def test_a_killed_search_resumes(tmp_path):
    script = (
        "from tests.tabular.search.test_search import *\n"
        f"quick_search(n_trials=500, folder={str(tmp_path / 'search')!r}).fit(FRAME, LABELS)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    path = tmp_path / "search" / "trials.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = [json.loads(line) for line in path.read_text().splitlines()]
    resumed = quick_search(n_trials=len(done) + 1, folder=tmp_path / "search").fit(FRAME, LABELS)
    assert [each.scores for each in resumed.trials_[: len(done)]] == [x["scores"] for x in done]
    assert len(resumed.trials_) == len(done) + 1


def test_another_search_in_the_same_folder_is_refused(tmp_path):
    quick_search(n_trials=1, folder=tmp_path, refit=False).fit(FRAME, LABELS)
    with pytest.raises(UserError, match="expected the table of the search that it contains"):
        quick_search(n_trials=1, folder=tmp_path).fit(FRAME[::-1], LABELS)
    with pytest.raises(UserError, match="expected the searcher of the search"):
        quick_search(n_trials=1, folder=tmp_path, searcher="tpe").fit(FRAME, LABELS)
    (tmp_path / "trials.jsonl").write_text('{"number": 0}\n')
    with pytest.raises(UserError, match=r"trials.jsonl, line 1: expected a trial"):
        quick_search(n_trials=1, folder=tmp_path).fit(FRAME, LABELS)


def test_time_budget_ends_the_search_after_the_first_trial():
    search = quick_search(n_trials=1000, max_seconds=1e-3, refit=False).fit(FRAME, LABELS)
    assert len(search.trials_) == 1 and search.best_params_ == {}


def test_failed_trials_are_reported_and_do_not_win(tmp_path):
    search = quick_search(space={"wiring": ["pre_ln", "no_such_wiring"]}, n_trials=6, pruning=False)
    search.fit(FRAME, LABELS)
    failed = [each for each in search.trials_ if each.state == "failed"]
    assert failed and "no_such_wiring" in failed[0].error
    assert all(np.isnan(each.score) for each in failed)
    assert search.best_params_.get("wiring", "pre_ln") == "pre_ln"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_trials": 0}, "n_trials: expected an integer >= 1, got 0"),
        ({"max_seconds": -1}, "max_seconds: expected a positive number, got -1"),
        ({"searcher": "grid"}, "unknown searcher 'grid'"),
        ({"scoring": "nonsense"}, "scoring: expected a name of sklearn.metrics"),
        ({"cv": 1}, "cv: "),
        ({"folder": "x", "random_state": None}, "random_state: expected an integer with folder"),
        ({"estimator": object()}, "estimator: expected a TabularTransformerClassifier"),
        ({"estimator": classifier(depth=-1)}, "the first trial failed: "),
    ],
)
def test_wrong_settings_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        quick_search(**{"estimator": None} | changes).fit(FRAME, LABELS)


def test_search_without_refit_does_not_predict():
    search = quick_search(n_trials=1, refit=False).fit(FRAME, LABELS)
    with pytest.raises(AttributeError, match="refit=True"):
        search.predict(FRAME)


# Searchers


def test_random_searcher_prunes_trials_above_the_median():
    trials = [make_trial(n, -1.0, losses=[1.0, 1.0, 1.0 + n]) for n in range(5)]
    proposal = RandomSearcher(search_space("mlp"), n_trials=9, seed=0, rows=99).propose(trials)
    assert not proposal.is_unpromising([9.0, 9.0])  # warm-up
    assert proposal.is_unpromising([9.0, 9.0, 3.1]) and not proposal.is_unpromising([9.0, 9.0, 2.9])
    few = RandomSearcher(search_space("mlp"), n_trials=9, seed=0, rows=99).propose(trials[:4])
    assert not few.is_unpromising([9.0, 9.0, 9.0])


def test_tpe_prunes_trials_above_the_median():
    searcher = TpeSearcher(search_space("mlp"), n_trials=9, seed=0, rows=99)
    params = RandomSearcher(search_space("mlp"), n_trials=9, seed=0, rows=99).draw
    trials = [make_trial(n, -1.0, losses=[1.0] * 4, params=params(n)) for n in range(6)]
    proposal = searcher.propose(trials)
    assert [proposal.is_unpromising([5.0] * epoch) for epoch in (1, 2, 3, 4)][-1]
    assert not any(searcher.propose(trials).is_unpromising([0.5] * epoch) for epoch in (1, 2, 3, 4))


def test_tpe_prefers_the_better_half():
    space = {"lr": Float(0.0, 1.0)}
    searcher, trials = TpeSearcher(space, n_trials=60, seed=0, rows=99), []
    while (proposal := searcher.propose(trials)) is not None:
        value = proposal.params.get("lr", 0.9)
        trials.append(make_trial(len(trials), -abs(value - 0.2), params=proposal.params))
    late = [each.params["lr"] for each in trials[-20:]]
    assert np.mean([abs(each - 0.2) < 0.2 for each in late]) > 0.7


def test_halving_keeps_the_best_third_on_three_times_the_rows():
    searcher, trials = HalvingSearcher(search_space("mlp"), n_trials=9, seed=0, rows=5000), []
    while (proposal := searcher.propose(trials)) is not None:
        trials.append(
            make_trial(len(trials), -float(len(trials) % 9), fraction=proposal.fraction,
                       params=proposal.params)
        )  # fmt: skip
    assert [round(each.fraction, 3) for each in trials] == [0.111] * 9 + [0.333] * 3 + [1.0]
    assert [each.params for each in trials[9:12]] == [searcher.draw(n) for n in range(3)]
    assert best_trial(trials) is trials[12]
    small = HalvingSearcher(search_space("mlp"), n_trials=9, seed=0, rows=100)
    assert small.fractions == [1.0]


def test_worse_splits_are_pruned_after_five_trials():
    trials = [make_trial(n, -1.0 - n) for n in range(5)]
    assert has_worse_scores([-3.5], trials, 1.0) and not has_worse_scores([-2.5], trials, 1.0)
    assert not has_worse_scores([-9.0], trials[:4], 1.0)
    assert not has_worse_scores([-9.0], trials, 0.5)


def test_results_of_pruned_trials_are_nan():
    results = make_cv_results([make_trial(0, 0.5), make_trial(1, state="pruned")], 2)
    assert np.isnan(results["mean_test_score"]).tolist() == [False, True]
    assert results["rank_test_score"].tolist() == [1, 2]


def test_trials_survive_the_disk(tmp_path):
    log = TrialLog(tmp_path, {"seed": 1})
    log.append(make_trial(0, 0.25, params={"wiring": "b2t", "lr": 0.1}))
    assert TrialLog(tmp_path, {"seed": 1}).trials == log.trials


def test_log_loss_counts_unknown_classes():
    class Model:
        classes_ = np.array(["a", "b"])

        def predict_proba(self, X):
            return np.full((len(X), 2), 0.5)

    assert negative_log_loss(Model(), pd.DataFrame(index=[0, 1]), ["a", "c"]) == pytest.approx(
        (np.log(0.5) + np.log(1e-15)) / 2
    )
