"""Temperature of small tables from out-of-fold predictions."""

import numpy as np
import pytest
from sklearn.metrics import log_loss

from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor, fitting
from addnorm.tabular.inspection.calibration import fit_temperature
from addnorm.tabular.temperature import FOLDS, MIN_ROWS
from tests.tabular.sample_tables import classifier

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 6))
Y = (X[:, 0] + RNG.normal(size=400) > 0).astype(int)  # half of the variance is noise
SIZES = {"model": "mlp", "dim": 16, "depth": 1, "lr": 1e-2, "max_epochs": 30, "random_state": 0}


def count_networks(monkeypatch):
    """Return a list that gets the training rows of every network that is trained."""
    rows = []

    def fit_model(model, train, *args, **options):
        rows.append(len(train.weights))
        return original(model, train, *args, **options)

    original = fitting.fit_model
    monkeypatch.setattr(fitting, "fit_model", fit_model)
    return rows


def test_overfitted_probabilities_of_a_small_table_are_calibrated(monkeypatch):
    rows = count_networks(monkeypatch)
    plain = TabularTransformerClassifier(**SIZES, calibration="none").fit(X[:80], Y[:80])
    calibrated = TabularTransformerClassifier(**SIZES).fit(X[:80], Y[:80])
    assert rows == [80, 80, *[64] * FOLDS]
    assert calibrated.temperature_ > 1.2
    losses = [log_loss(Y[80:], each.predict_proba(X[80:])) for each in (plain, calibrated)]
    assert losses[1] < losses[0]
    np.testing.assert_array_equal(plain.predict(X), calibrated.predict(X))  # the same network
    again = TabularTransformerClassifier(**SIZES).fit(X[79::-1], Y[79::-1])
    assert again.temperature_ == calibrated.temperature_


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (MIN_ROWS - 1, {}),
        (60, {"calibration": "none"}),
        (60, {"bagging": 2}),
        (60, {"model": "mlp", "heads": None, "members": 2}),
        (60, {"validation_split": np.arange(10)}),
    ],
)
def test_other_fits_train_no_further_networks(monkeypatch, rows, options):
    networks = count_networks(monkeypatch)
    classifier(max_epochs=1, **{"calibration": "temperature"} | options).fit(X[:rows], Y[:rows])
    assert len(networks) == options.get("bagging", 1)


def test_given_validation_rows_and_numbers_train_one_network(monkeypatch):
    networks = count_networks(monkeypatch)
    estimator = classifier(max_epochs=1, calibration="temperature")
    estimator.fit(X[:60], Y[:60], X_val=X[60:90], y_val=Y[60:90])
    TabularTransformerRegressor(**SIZES | {"max_epochs": 1}).fit(X[:60], X[:60, 0])
    assert len(networks) == 2


def test_refit_and_cross_fitting_share_the_time(monkeypatch):
    networks = count_networks(monkeypatch)
    estimator = TabularTransformerClassifier(**SIZES, refit=True, max_seconds=30.0).fit(X, Y)
    assert networks == [360, *[320] * FOLDS, 400]
    assert estimator.temperature_ != 1


def test_temperature_stays_within_its_bounds():
    logits, targets = np.array([[1.0, -1.0]] * 9), np.zeros(9, int)
    assert fit_temperature(logits, targets, np.ones(9)) < 0.4
    bounded = fit_temperature(logits, targets, np.ones(9), bounds=(-0.7, 1.1))
    assert bounded == pytest.approx(np.exp(-0.7), rel=1e-3)
