"""Estimators on mixed tables; weights, seeds and row order."""

import datetime
import decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from addnorm.core.errors import UserError
from addnorm.models.tabular import MODELS
from addnorm.tabular.inspection.calibration import Reliability
from addnorm.tabular.training.number_targets import NumberTarget
from addnorm.tabular.training.torch_context import torch_context
from tests.tabular.sample_tables import FRAME, LABELS, NUMBERS, SUMS, classifier, mixed, regressor


@pytest.mark.parametrize("model", MODELS)
def test_every_model_fits_a_mixed_table_with_missing_cells(model):
    estimator = classifier(model=model).fit(FRAME, LABELS)
    probabilities = estimator.predict_proba(FRAME)
    assert probabilities.shape == (60, 2) and np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert set(estimator.predict(FRAME)) <= {"yes", "no"}
    assert list(estimator.classes_) == ["no", "yes"]
    assert list(estimator.feature_names_in_) == list(FRAME)
    assert estimator.feature_importances_.shape == (6,)
    assert estimator.transform(FRAME).shape == (60, estimator.module_.width)


def test_polars_and_pandas_give_the_same_predictions():
    estimator = classifier().fit(FRAME, LABELS)
    other = classifier().fit(pl.from_pandas(FRAME), pl.Series(LABELS))
    np.testing.assert_array_equal(
        estimator.predict_proba(FRAME), other.predict_proba(pl.from_pandas(FRAME))
    )


def test_predict_with_missing_infinite_and_unseen_cells():
    estimator = classifier().fit(FRAME, LABELS)
    unusual = FRAME.head(4).copy()
    unusual["colour"] = ["violet", None, "red", ""]
    unusual["number"] = [np.nan, np.inf, -np.inf, 1e300]
    unusual["note"] = None
    unusual["day"] = pd.NaT
    assert np.isfinite(estimator.predict_proba(unusual)).all()
    assert len(estimator.predict(FRAME.iloc[[3]])) == 1


def test_missing_numbers_are_not_imputed():
    """No value of the column gives the prediction of a missing one."""
    x = np.linspace(-1, 1, 40)[:, None]
    x[::4] = np.nan
    y = np.where(np.isnan(x[:, 0]), 5.0, 0.0)
    estimator = regressor(lr=1e-2, max_epochs=40).fit(x, y)
    assert estimator.predict([[np.nan]])[0] > 3
    assert (estimator.predict(np.linspace(-1, 1, 9)[:, None]) < 2).all()


@pytest.mark.parametrize(
    "X",
    [
        NUMBERS[:, :1],
        np.hstack([NUMBERS, np.full((40, 1), 7.0)]),
        np.random.default_rng(1).normal(size=(40, 200)),
        np.array([["a"], ["b"]] * 20, dtype=object),
    ],
    ids=["one column", "a constant column", "200 columns", "categories alone"],
)
def test_narrow_wide_and_constant_tables_are_fitted(X):
    assert np.isfinite(regressor(max_epochs=1).fit(X, SUMS).predict(X)).all()


def test_regression_on_one_row():
    assert abs(regressor().fit([[1.0, 2.0]], [5.0]).predict([[1.0, 2.0]])[0] - 5) < 1


@pytest.mark.parametrize(
    "y",
    [
        np.array([True, False] * 20),
        np.array(["a", "b"] * 20, dtype=object),
        np.arange(40) % 20,
        np.array([0] * 39 + [1]),
        pd.Series(["x", "y"] * 20, dtype="category"),
    ],
    ids=["booleans", "objects", "20 classes", "39 to 1", "categorical"],
)
def test_class_labels_of_any_type(y):
    estimator = classifier(max_epochs=1).fit(NUMBERS, y)
    assert set(estimator.predict(NUMBERS)) <= set(np.asarray(y))
    assert estimator.predict_proba(NUMBERS).shape == (40, len(set(y)))


def test_target_outliers_select_quantile_scaling():
    y = SUMS.copy()
    y[:2] = 1e6, -1e6
    assert regressor(max_epochs=1).fit(NUMBERS, SUMS).target_.curve is None
    estimator = regressor(lr=1e-2, max_epochs=40).fit(NUMBERS, y)
    assert estimator.target_.curve is not None
    assert np.corrcoef(estimator.predict(NUMBERS)[2:], SUMS[2:])[0, 1] > 0.5
    assert regressor(max_epochs=1, target_scaling="standard").fit(NUMBERS, y).target_.curve is None


def test_classifier_learns():
    X, y = mixed(300)
    plain = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    estimator = classifier(dim=16, lr=1e-2, max_epochs=25, early_stopping=False, **plain).fit(X, y)
    assert estimator.score(X, y) > 0.85
    assert estimator.history_[-1]["train"] < estimator.history_[0]["train"] / 2


def test_weights_equal_repetitions_in_any_order():
    weights = np.arange(40) % 3
    one = regressor().fit(NUMBERS, SUMS, sample_weight=weights)
    order = np.random.default_rng(0).permutation(weights.sum())
    X, y = np.repeat(NUMBERS, weights, 0)[order], np.repeat(SUMS, weights)[order]
    np.testing.assert_array_equal(one.predict(NUMBERS), regressor().fit(X, y).predict(NUMBERS))


def test_weights_equal_repetitions_with_all_column_types_and_early_stopping():
    X, y = mixed(320)
    X["word"] = [f"w{index % 75}" for index in range(320)]  # categorical only with repetitions
    weights = np.arange(320) % 3 + 1
    settings = {"max_epochs": 1, "early_stopping": True, "class_weight": {"yes": 2.5, "no": 1}}
    one = classifier(**settings).fit(X, y, sample_weight=weights)
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(320), weights))
    two = classifier(**settings).fit(X.iloc[order], y[order])
    assert one.encoder_.kinds == two.encoder_.kinds
    assert one.encoder_.kinds[-2:] == ("datetime", "categorical")
    assert one.history_[0]["valid"] == two.history_[0]["valid"]
    np.testing.assert_array_equal(one.predict_proba(X), two.predict_proba(X))


def test_repeated_rows_are_learned_by_their_frequency():
    x = np.array([0, 1] * 500)[:, None]
    y = np.r_[np.array([0, 1] * 350), np.array([1, 0] * 150)]  # agrees in 70 of 100 rows
    estimator = classifier(lr=1e-2, max_epochs=10, dropout=0).fit(x, y)
    np.testing.assert_allclose(estimator.predict_proba([[0], [1]])[:, 1], [0.3, 0.7], atol=0.08)


def test_noisy_targets_of_repeated_rows_with_early_stopping():
    """Regression test: rows of a store with one label were held out, so training never saw it."""
    rng = np.random.default_rng(0)
    true = rng.uniform(0.1, 0.9, 400)
    store = rng.integers(0, 400, 12_000)
    y = (rng.random(12_000) < true[store]).astype(int)
    estimator = classifier(max_epochs=8, lr=2e-2, batch_size=128, dropout=0, early_stopping=True)
    estimator.fit(pd.DataFrame({"store": [f"s{each}" for each in store]}), y)
    predicted = estimator.predict_proba(
        pd.DataFrame({"store": [f"s{each}" for each in range(400)]})
    )[:, 1]
    assert np.corrcoef(predicted, true)[0, 1] > 0.8
    assert np.abs(predicted - true).mean() < 0.15
    assert estimator.history_[-1]["valid"] < 0.66


def test_validation_rows_do_not_influence_encoder_or_target():
    X = pd.DataFrame({"c": [f"v{index}" for index in range(400)], "x": np.arange(400.0)})
    kinds = {"c": "categorical"}
    estimator = regressor(max_epochs=1, early_stopping=True, column_types=kinds).fit(X, X["x"])
    assert len(estimator.encoder_.categories[0].values) == 360
    codes = estimator.encoder_.encode(X).codes[:, 0].numpy()
    train = X["x"][codes != 1]
    assert len(train) == 360 and estimator.target_.center == pytest.approx(train.mean())
    assert estimator.target_.center != pytest.approx(X["x"].mean(), abs=1e-3)
    X = pd.DataFrame({"x": np.arange(400.0), "y": [np.nan] * 399 + [1.0]})
    for seed in range(12):  # with some seeds, the only value of y is a validation row
        estimator = regressor(max_epochs=1, early_stopping=True, random_state=seed, dim=2, heads=1)
        assert np.isfinite(estimator.fit(X, X["x"]).predict(X)).all()


def test_predictions_depend_on_the_seed_only():
    predicted = [
        regressor(random_state=seed).fit(NUMBERS, SUMS).predict(NUMBERS) for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(predicted[0], predicted[1])
    assert not np.array_equal(predicted[0], predicted[2])


def test_fit_restores_random_state_and_threads():
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    regressor(max_epochs=1, n_jobs=1).fit(NUMBERS, SUMS).predict(NUMBERS)
    with torch_context(threads=threads + 1, seed=1):
        assert torch.get_num_threads() == threads + 1
        torch.rand(1)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads


def test_class_weights_change_predictions():
    y = np.array([0] * 30 + [1] * 10)
    heavy = classifier(class_weight={0: 1e-3, 1: 1e3}).fit(NUMBERS, y)
    assert (heavy.predict(NUMBERS) == 1).all()
    plain, balanced = (
        classifier(class_weight=weight).fit(NUMBERS, y).predict_proba(NUMBERS)[:, 1].mean()
        for weight in (None, "balanced")
    )
    assert balanced > plain + 0.05


def test_class_weights_ignore_rows_of_weight_zero():
    y = np.array([0] * 30 + [1] * 10)
    weights = np.r_[np.ones(15), np.zeros(15), np.ones(10)]
    estimator = classifier(class_weight="balanced").fit(NUMBERS, y, sample_weight=weights)
    some = weights > 0
    other = classifier(class_weight="balanced").fit(NUMBERS[some], y[some])
    np.testing.assert_array_equal(estimator.predict_proba(NUMBERS), other.predict_proba(NUMBERS))
    for wrong in ({0: 0, 1: 0}, {0: -1, 1: 2}):
        with pytest.raises(ValueError, match="class_weight: expected weights >= 0"):
            classifier(class_weight=wrong).fit(NUMBERS, y)


@pytest.mark.parametrize("model", MODELS)
def test_predictions_do_not_depend_on_other_rows(model):
    estimator = classifier(model=model).fit(FRAME, LABELS)
    np.testing.assert_array_equal(
        estimator.predict_proba(FRAME)[5:6], estimator.predict_proba(FRAME.iloc[5:6])
    )


@pytest.mark.parametrize("scale", [1e300, 1e-300])
def test_extreme_weights_and_targets(scale):
    plain = regressor().fit(NUMBERS, SUMS).predict(NUMBERS)
    far = regressor().fit(NUMBERS, SUMS * scale).predict(NUMBERS)
    np.testing.assert_allclose(far / scale, plain, rtol=1e-3, atol=1e-3)
    heavy = regressor().fit(NUMBERS, SUMS, sample_weight=np.full(40, scale)).predict(NUMBERS)
    np.testing.assert_allclose(heavy, plain, rtol=1e-3, atol=1e-3)


def test_arrow_column_types():
    moment, day = datetime.datetime(2026, 1, 1), datetime.date(2026, 1, 1)
    columns = {
        "whole": ([1, None], pa.int64()),
        "moment": ([moment, None], pa.timestamp("us", tz="UTC")),
        "day": ([day, None], pa.date32()),
        "span": ([datetime.timedelta(1), None], pa.duration("s")),
        "exact": ([decimal.Decimal("1.5"), None], pa.decimal128(5, 2)),
        "text": (["a", None], pa.string()),
        "truth": ([True, None], pa.bool_()),
        "list": ([[1, 2], None], pa.list_(pa.int64())),
    }
    kinds = [
        *("numeric", "datetime", "datetime", "numeric", "numeric"),
        *("categorical", "boolean", "categorical"),
    ]
    frame = pd.DataFrame(
        {name: pd.array(each * 20, dtype=pd.ArrowDtype(of)) for name, (each, of) in columns.items()}
    )
    table = pa.table({name: pa.array(each * 20, of) for name, (each, of) in columns.items()})
    for X in (frame, table):
        estimator = regressor(max_epochs=1, column_types={"list": "categorical"})
        assert list(estimator.fit(X, SUMS).encoder_.kinds) == kinds


def test_column_types_unknown_to_arrow_are_rejected():
    wide = pl.DataFrame({"x": pl.Series([1, 2] * 20, dtype=pl.Int128)})
    with pytest.raises(ValueError, match="got a DataFrame that cannot be converted: "):
        regressor().fit(wide, SUMS)


@pytest.mark.parametrize("zeros", [0.0, 0.6, 0.9])
def test_target_with_one_dominant_value_is_standardized(zeros):
    """With quantiles, almost every prediction would be that value."""
    rng = np.random.default_rng(0)
    y = np.exp(2 * rng.normal(size=2000)) * (rng.random(2000) >= zeros)
    target = NumberTarget.from_values(y, np.ones(2000), "auto")
    assert (target.curve is None) == (zeros > 0.5)


@pytest.mark.parametrize(
    "weights",
    [
        np.full(40, 1e-320),
        np.full(40, 1e300),
        np.where(np.arange(40), 1.0, 1e18),
        np.where(np.arange(40), 1.0, 1e308),
        np.where(np.arange(40) % 2, 1e-300, 1e300),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_weights_of_any_size(weights, early):
    estimator = classifier(early_stopping=early, validation_fraction=0.3)
    estimator.fit(NUMBERS, SUMS > 0, sample_weight=weights)
    assert np.isfinite(estimator.predict_proba(NUMBERS)).all()
    assert all(np.isfinite(list(row.values())).all() for row in estimator.history_)
    scores = estimator.encoder_.numbers[0].curve.scores
    assert np.abs(scores).max() < 1000 and (np.diff(scores) > 0).all()


def test_reliability_validates_its_input():
    estimator = classifier(max_epochs=1).fit(NUMBERS, (SUMS > 0).astype(int))
    y = (SUMS > 0).astype(int)
    assert (
        estimator.reliability(NUMBERS, y[:, None]).error == estimator.reliability(NUMBERS, y).error
    )
    with pytest.raises(UserError, match=r"y: expected labels among \[0, 1\], got none of them"):
        estimator.reliability(NUMBERS, y.astype(str))
    for bins in (0, 2.5, True):
        with pytest.raises(UserError, match="bins: expected an integer >= 1"):
            estimator.reliability(NUMBERS, y, bins=bins)
    with pytest.raises(UserError, match="got 40 probabilities and 39 outcomes"):
        estimator.reliability(NUMBERS, y[1:])
    with pytest.raises(UserError, match="probability: expected values between 0 and 1"):
        Reliability.from_predictions(np.array([0.5, 1.5]), np.array([0, 1]))
