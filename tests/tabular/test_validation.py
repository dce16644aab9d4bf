"""Validation rows: further rows, splits, groups, refit and bagging."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, TimeSeriesSplit

from addnorm.core.errors import TableWarning, UserError
from addnorm.tabular import load
from addnorm.tabular.validation import TRAIN, UNUSED, assign_parts
from tests.tabular.sample_tables import FRAME, LABELS, classifier, regressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 2))
Y = np.where(X[:, 0] > 0, "high", "low")
NUMBERS = 3 * X[:, 0] + 1


def quick(**params):
    return classifier(max_epochs=3, **params)


def scale_of(model):
    """Return the training values of the first column."""
    return model.encoder_.numbers[0].curve.values


def test_validation_rows_choose_the_epoch_and_nothing_else():
    model = quick().fit(X[:80], Y[:80], X_val=X[80:], y_val=Y[80:])
    assert all("valid" in row for row in model.history_)
    shifted = quick().fit(X[:80], Y[:80], X_val=X[80:] * 100, y_val=Y[80:])
    assert model.encoder_.numbers[0].curve.values.tolist() == (
        shifted.encoder_.numbers[0].curve.values.tolist()
    )
    as_pairs = quick().fit(X[:80], Y[:80], eval_set=[(X[80:], Y[80:])])
    as_pair = quick().fit(X[:80], Y[:80], eval_set=(X[80:], Y[80:]))
    for other in (as_pairs, as_pair):
        np.testing.assert_array_equal(model.predict_proba(X), other.predict_proba(X))
    weights = np.r_[np.ones(20), np.zeros(20)]
    half = quick().fit(X[:80], Y[:80], X_val=X[80:], y_val=Y[80:], sample_weight_val=weights)
    alone = quick().fit(X[:80], Y[:80], X_val=X[80:100], y_val=Y[80:100])
    assert [row["valid"] for row in half.history_] == pytest.approx(
        [row["valid"] for row in alone.history_]
    )


def test_validation_loss_of_a_regressor_is_that_of_the_rows():
    model = regressor(max_epochs=3, average=0.0).fit(
        X[:80], NUMBERS[:80], X_val=X[80:], y_val=NUMBERS[80:]
    )
    error = np.mean((model.predict(X[80:]) - NUMBERS[80:]) ** 2) / model.target_.scale**2
    assert min(row["valid"] for row in model.history_) == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X_val": X}, "X_val requires y_val"),
        ({"y_val": Y}, "y_val requires X_val"),
        ({"X_val": X, "y_val": Y, "eval_set": [(X, Y)]}, "expected either X_val and y_val or"),
        ({"eval_set": [(X, Y), (X, Y)]}, "eval_set: expected one pair"),
        ({"X_val": X, "y_val": np.where(Y == "low", "none", Y)}, "y_val: expected classes of y"),
        ({"X_val": X[:, :1], "y_val": Y}, "X has 1 features, but"),
        ({"X_val": X, "y_val": Y[:-1]}, "inconsistent numbers of samples"),
        ({"groups": Y[:-1]}, "inconsistent numbers of samples"),
    ],
)
def test_invalid_validation_rows_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        quick().fit(X, Y, **arguments)


def test_indices_masks_and_splitters_name_validation_rows():
    index = np.arange(90, 120)
    mask = np.isin(np.arange(120), index)
    expected = quick().fit(X[:90], Y[:90], X_val=X[90:], y_val=Y[90:])
    shuffled = ShuffleSplit(1, test_size=30, random_state=0)
    shuffled.split = lambda X, y=None, groups=None: iter([(np.arange(90), index)])
    probabilities = []
    for split in (index, index.tolist(), mask, shuffled):
        model = quick(validation_split=split).fit(X, Y)
        np.testing.assert_array_equal(scale_of(model), scale_of(expected))
        probabilities.append(model.predict_proba(X))
        np.testing.assert_array_equal(probabilities[0], probabilities[-1])


def test_a_splitter_may_leave_rows_out():
    splitter = TimeSeriesSplit(2, test_size=30, max_train_size=40)
    parts = assign_parts(quick(validation_split=splitter), Y, None, seed=0)
    assert np.bincount(parts + 2).tolist() == [50, 40, 30]
    assert (parts[:20] == UNUSED).all() and parts[20] == TRAIN
    model = quick(validation_split=splitter).fit(X, Y)
    alone = quick().fit(X[20:60], Y[20:60], X_val=X[60:90], y_val=Y[60:90])
    np.testing.assert_array_equal(scale_of(model), scale_of(alone))


def test_groups_are_held_out_as_a_whole():
    groups = np.repeat(np.arange(12), 10)
    parts = assign_parts(quick(validation_split=0.25), Y, groups, seed=3)
    held_out = set(groups[parts == 0])
    assert len(held_out) == 3 and not held_out & set(groups[parts == TRAIN])
    model = quick(validation_split=0.25).fit(X, Y, groups=groups)
    assert all("valid" in row for row in model.history_)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"validation_split": "half"}, "validation_split: expected a fraction, indices or a mask"),
        ({"validation_split": [500]}, "validation_split: expected indices below 120"),
        ({"validation_split": np.arange(120)}, "expected some rows for training and some for"),
        ({"validation_split": 1.5, "early_stopping": True}, "validation_split: expected a frac"),
        ({"validation_split": [1], "early_stopping": False}, "early_stopping: expected True or"),
        ({"validation_split": GroupKFold(3)}, "GroupKFold: The 'groups' parameter should not be"),
        ({"bagging": 1}, "bagging: expected None, a number of folds >= 2 or a splitter"),
        ({"bagging": 70}, "bagging: expected at least 140 distinct rows for 70 folds, got 120"),
        ({"bagging": 3, "refit": True}, "refit: expected False with bagging"),
        ({"bagging": 3, "validation_split": 0.1}, "validation_split: expected None with bagging"),
        ({"bagging": TimeSeriesSplit(3)}, "bagging: expected a splitter whose test parts are"),
    ],
)
def test_invalid_splits_are_rejected(params, message):
    with pytest.raises(UserError, match=message):
        quick(**params).fit(X, Y)


def test_refit_trains_on_all_rows():
    model = quick(validation_split=np.arange(60), refit=True).fit(X, Y)
    assert model.encoder_.numbers[0].curve.values[0] == X[:, 0].min()
    assert model.encoder_.numbers[0].curve.values[-1] == X[:, 0].max()
    best = min(model.history_, key=lambda row: row["valid"])["epoch"]
    alone = classifier(max_epochs=int(best), early_stopping=False).fit(X, Y)
    logits = np.log(alone.predict_proba(X)) / model.temperature_
    np.testing.assert_allclose(
        model.predict_log_proba(X)[:, 0] - model.predict_log_proba(X)[:, 1],
        logits[:, 0] - logits[:, 1],
        atol=1e-9,
    )
    assert model.importances_.mean.shape == (2,)


def test_bagging_averages_networks_and_returns_out_of_fold_predictions(tmp_path):
    model = classifier(bagging=3, max_epochs=40).fit(X, Y)
    assert len(model.module_.models) == 3 and model.oof_proba_.shape == (120, 2)
    np.testing.assert_allclose(model.oof_proba_.sum(1), 1)
    assert accuracy_score(Y, model.classes_[model.oof_proba_.argmax(1)]) > 0.8
    assert {row["fold"] for row in model.history_} == {0, 1, 2}
    expected = model.predict_proba(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), expected)
    model.save(tmp_path)
    loaded = load(tmp_path)
    np.testing.assert_array_equal(loaded.predict_proba(X), expected)
    np.testing.assert_allclose(loaded.feature_importances_, model.feature_importances_)
    assert model.transform(X).shape == (120, 3 * model.module_.models[0].width)


def test_out_of_fold_predictions_do_not_see_their_own_target():
    noise = np.random.default_rng(1).normal(size=120)
    model = regressor(bagging=KFold(4, shuffle=True, random_state=0), max_epochs=10)
    model.fit(X, noise, sample_weight=np.r_[0, np.ones(119)])
    assert np.isnan(model.oof_prediction_[0]) and np.isfinite(model.oof_prediction_[1:]).all()
    changed = noise.copy()
    changed[5] += 1e-3
    model_5 = regressor(bagging=KFold(4, shuffle=True, random_state=0), max_epochs=10).fit(
        X, noise, groups=None
    )
    assert np.corrcoef(model_5.oof_prediction_, noise)[0, 1] < 0.5


def test_folds_of_a_bag_keep_equal_rows_and_groups_together():
    double = pd.concat([FRAME, FRAME], ignore_index=True)
    labels = [*LABELS, *LABELS]
    model = classifier(bagging=2, max_epochs=1).fit(double, labels)
    half = len(FRAME)
    np.testing.assert_array_equal(model.oof_proba_[:half], model.oof_proba_[half:])
    groups = np.arange(2 * half) % 4
    grouped = classifier(bagging=2, max_epochs=1).fit(double, labels, groups=groups)
    assert np.isfinite(grouped.oof_proba_).all()


def test_constant_target_is_predicted():
    """Regression test: a constant target, as in a fold of a search, was an error."""
    with pytest.warns(TableWarning, match="y is 7 in every row"):
        model = regressor(max_epochs=2).fit(FRAME, np.full(len(FRAME), 7.0))
    np.testing.assert_allclose(model.predict(FRAME), 7, rtol=1e-9)


def test_warm_start_warns_about_shifted_data():
    """Regression test: columns beyond the range of the first fit were silently constant."""
    model = regressor(max_epochs=1, warm_start=True).fit(X, NUMBERS)
    model.fit(X + 0.01, NUMBERS)
    with pytest.warns(TableWarning, match=r"earlier fit.*'x0' \(\d+% of the cells\), 'x1'"):
        model.fit(X + 10, NUMBERS)


def test_time_limit_counts_encoding(monkeypatch):
    """Regression test: `max_seconds` began after columns had been read and encoded."""
    import addnorm.tabular.estimator as module

    limits = []
    original = module.train_networks

    def record(*args, deadline, **kwargs):
        limits.append(deadline)
        return original(*args, deadline=deadline, **kwargs)

    monkeypatch.setattr(module, "train_networks", record)
    clock = iter([1000.0])
    real = module.time.monotonic
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock, real()))
    regressor(max_epochs=2, max_seconds=5.0).fit(X, NUMBERS)
    assert limits == [1005.0]


@pytest.mark.parametrize(("positive", "validates"), [(40, False), (60, True), (200, True)])
def test_early_stopping_needs_rows_of_the_rare_class(positive, validates):
    X = np.random.default_rng(0).normal(size=(400, 2))
    y = (np.arange(400) < positive).astype(int)
    history = classifier(max_epochs=1).fit(X, y).history_
    assert ("valid" in history[0]) == validates
    forced = classifier(max_epochs=1, early_stopping=True).fit(X, y)
    assert "valid" in forced.history_[0]
    numbers = regressor(max_epochs=1).fit(X, y.astype(float))  # has no classes
    assert "valid" in numbers.history_[0]


def test_weights_of_validation_rows_need_validation_rows():
    for model, y in ((classifier(), LABELS), (regressor(), np.arange(len(LABELS), dtype=float))):
        with pytest.raises(UserError, match="sample_weight_val: expected None without X_val"):
            model.fit(FRAME, y, sample_weight_val=np.ones(len(LABELS)))
