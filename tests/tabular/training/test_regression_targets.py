"""Losses, quantiles, several targets and intervals of regressors; ordinal classes."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    d2_pinball_score,
    mean_gamma_deviance,
    mean_pinball_loss,
    mean_poisson_deviance,
)

from addnorm.core.errors import UserError
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor
from addnorm.tabular.inspection.intervals import IntervalScores
from addnorm.tabular.training.number_targets import LogTarget, NumberTarget, weighted_quantiles
from addnorm.tabular.training.regression_targets import (
    QuantileTarget,
    make_regression_target,
    target_from_json,
)
from addnorm.tabular.training.targets import ClassTarget, ordinal_loss

SMALL = {"model": "mlp", "dim": 16, "depth": 1, "max_epochs": 10, "random_state": 0, "n_jobs": 1}


def make_table(rows=500, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    return X, 2 * X[:, 0] + rng.normal(size=rows) * (0.5 + np.abs(X[:, 1]))


@pytest.mark.parametrize(
    ("loss", "deviance"), [("poisson", mean_poisson_deviance), ("gamma", mean_gamma_deviance)]
)
def test_log_targets_have_half_the_deviance_of_scikit_learn(loss, deviance):
    rng = np.random.default_rng(0)
    y = rng.integers(1, 9, 20).astype(float)
    target = LogTarget.from_values(y, np.ones(20), loss)
    outputs = rng.normal(size=(20, 1))
    losses = target.loss(torch.from_numpy(outputs), target.encode(y).double())
    # The loss is that of y / mean; a deviance of Poisson is proportional to the unit.
    unit = target.mean if loss == "poisson" else 1.0
    expected = deviance(y, target.decode(outputs)) / 2 / unit
    assert float(losses.double().mean()) == pytest.approx(expected, rel=1e-5)


def test_zero_counts_have_a_finite_loss_and_gradient():
    target = LogTarget.from_values(np.array([0.0, 2.0]), np.ones(2), "poisson")
    outputs = torch.zeros(2, 1, requires_grad=True)
    target.loss(outputs, target.encode(np.array([0.0, 2.0]))).sum().backward()
    assert outputs.grad.flatten().tolist() == pytest.approx([1.0, -1.0])


def test_quantile_loss_is_the_pinball_loss_of_sorted_outputs():
    rng = np.random.default_rng(1)
    y, outputs = rng.normal(size=30), rng.normal(size=(30, 3))
    levels = (0.1, 0.5, 0.9)
    target = QuantileTarget(NumberTarget(0.0, 1.0), levels)
    predictions = target.decode(outputs)
    expected = np.mean(
        [mean_pinball_loss(y, predictions[:, i], alpha=level) for i, level in enumerate(levels)]
    )
    loss = target.loss(torch.from_numpy(outputs), target.encode(y)).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-5)


@given(st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_decoded_quantiles_never_cross(rows):
    y = np.array([0.0, 1.0, 5.0, 100.0])
    for scaling in ("standard", "quantile"):
        target = make_regression_target(y, np.ones(4), scaling=scaling, quantiles=[0.2, 0.5, 0.7])
        assert (np.diff(target.decode(np.array(rows)), axis=1) >= 0).all()


def test_initial_bias_is_the_best_constant():
    y, weights = np.array([1.0, 2.0, 3.0, 10.0]), torch.tensor([1.0, 1.0, 1.0, 1.0])
    values = torch.from_numpy(y)
    assert weighted_quantiles(values, weights, [0.25, 0.5, 0.99]).tolist() == [1.0, 2.0, 10.0]
    heavy = torch.tensor([1.0, 1.0, 1.0, 9.0])
    assert weighted_quantiles(values, heavy, [0.5]).tolist() == [10.0]
    poisson = LogTarget.from_values(y, np.ones(4), "poisson")
    bias = poisson.initial_bias(poisson.encode(y), weights)
    assert poisson.decode(bias[None].numpy())[0] == pytest.approx(4.0)


def brute_force_ordinal_loss(probabilities, rank):
    terms = []
    for k in range(len(probabilities) - 1):
        at_most = probabilities[: k + 1].sum()
        terms.append(-np.log(at_most if rank <= k else 1 - at_most))
    return np.mean(terms)


def test_ordinal_loss_equals_its_formula():
    rng = np.random.default_rng(0)
    logits, ranks = rng.normal(size=(12, 4)), rng.integers(0, 4, 12)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = [brute_force_ordinal_loss(*pair) for pair in zip(probabilities, ranks, strict=True)]
    losses = ordinal_loss(torch.from_numpy(logits), torch.from_numpy(ranks))
    assert losses.tolist() == pytest.approx(expected)


def test_ordinal_loss_is_smallest_at_the_true_probabilities():
    truth = torch.tensor([0.5, 0.1, 0.3, 0.1], dtype=torch.float64)
    logits = truth.log().requires_grad_()
    losses = ordinal_loss(logits.expand(4, 4), torch.arange(4))
    (losses * truth).sum().backward()
    assert logits.grad.abs().max() < 1e-12


def test_ordinal_loss_uses_the_order_of_the_classes():
    outputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    ranks = torch.tensor([0, 1, 2, 0, 2])
    order = (2, 0, 1)  # the lowest class has code 2
    codes = torch.tensor(order)[ranks]
    expected = ordinal_loss(outputs[:, list(order)], ranks)
    assert torch.equal(ClassTarget(3, order).loss(outputs, codes), expected)


def test_ordered_categories_give_the_order():
    X, y = make_table(200)
    codes = np.digitize(y, [-1.0, 1.0])
    labels = ["small", "medium", "large"]
    texts = pd.Series(pd.Categorical.from_codes(codes, labels, ordered=True))
    model = TabularTransformerClassifier(loss="ordinal", **SMALL).fit(X, texts)
    assert model.classes_.tolist() == sorted(labels)
    assert [labels[0], labels[1], labels[2]] == [
        model.classes_[code] for code in model.target_.order
    ]
    assert model.score(X, np.array(labels)[codes]) > 0.5
    with pytest.raises(UserError, match="ordered pandas Categorical"):
        TabularTransformerClassifier(loss="ordinal", **SMALL).fit(X, np.array(labels)[codes])


@pytest.mark.parametrize(
    ("loss", "shift"),
    [("absolute_error", 0), ("huber", 0), ("poisson", 0), ("gamma", 1)],
)
def test_losses_learn(loss, shift):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = rng.poisson(np.exp(1 + X[:, 0])).astype(float) + shift
    model = TabularTransformerRegressor(loss=loss, **SMALL | {"max_epochs": 25}).fit(X, y)
    assert model.score(X, y) > 0.4
    if loss in ("poisson", "gamma"):
        assert (model.predict(X) > 0).all()


def test_custom_loss_sees_the_scale_of_the_target():
    X, y = make_table(100)
    y = 1000 + 50 * y
    seen = []

    def loss(predictions, values):
        seen.append(values)
        return (predictions - values).square()

    TabularTransformerRegressor(loss=loss, **SMALL | {"max_epochs": 1}).fit(X, y)
    assert float(torch.cat(seen).mean()) == pytest.approx(y.mean(), rel=0.01)


def test_several_targets_are_predicted_side_by_side():
    X, y = make_table(300)
    both = np.stack([y, 1e6 * X[:, 2] ** 2], 1)
    model = TabularTransformerRegressor(**SMALL | {"max_epochs": 25}).fit(X, both)
    assert model.predict(X).shape == (300, 2)
    assert model.score(X, both) > 0.4
    with pytest.raises(UserError, match="expected one target, got 2"):
        model.predict_interval(X)
    with pytest.raises(UserError, match="y_val: expected a target of shape"):
        model.fit(X, both, X_val=X, y_val=y)


def test_quantiles_cover_their_fraction_and_survive_saving(tmp_path):
    X, y = make_table(2000)
    model = TabularTransformerRegressor(quantiles=[0.1, 0.5, 0.9], **SMALL).fit(X, y)
    X_new, y_new = make_table(2000, seed=1)
    predictions = model.predict(X_new)
    assert (y_new[:, None] < predictions).mean(0) == pytest.approx([0.1, 0.5, 0.9], abs=0.05)
    scores = [
        d2_pinball_score(y_new, predictions[:, index], alpha=level)
        for index, level in enumerate(model.quantiles)
    ]
    assert model.score(X_new, y_new) == pytest.approx(np.mean(scores))
    model.save(tmp_path)
    loaded = TabularTransformerRegressor.load(tmp_path)
    assert np.array_equal(loaded.predict(X_new), predictions)
    assert np.array_equal(loaded.predict_interval(X_new), model.predict_interval(X_new))


@pytest.mark.parametrize("options", [{}, {"quantiles": [0.25, 0.75]}, {"bagging": 3}])
def test_intervals_cover_new_values(options):
    X, y = make_table(1500)
    model = TabularTransformerRegressor(**SMALL, **options).fit(X, y)
    X_new, y_new = make_table(2000, seed=2)
    for coverage in (0.5, 0.9):
        low, high = model.predict_interval(X_new, coverage=coverage).T
        covered = ((low <= y_new) & (y_new <= high)).mean()
        assert covered == pytest.approx(coverage, abs=0.08)


def test_intervals_need_validation_rows():
    X, y = make_table(60)
    model = TabularTransformerRegressor(**SMALL | {"max_epochs": 1}).fit(X, y)
    with pytest.raises(UserError, match="fit with validation rows"):
        model.predict_interval(X)
    scores = IntervalScores.from_predictions(np.zeros(9), np.arange(9.0))
    assert scores.interval(np.zeros(1), 0.9).tolist() == [[-8.0, 8.0]]
    with pytest.raises(UserError, match=r"at most 0\.9 with 9 validation rows"):
        scores.interval(np.zeros(1), 0.95)
    with pytest.raises(UserError, match="probability"):
        scores.interval(np.zeros(1), 90)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "huber"},
        {"loss": "gamma"},
        {"quantiles": [0.5]},
        {"scaling": "quantile"},
    ],
)
def test_targets_round_trip_through_json(options):
    y = np.arange(1.0, 30.0) ** 2
    for values in (y,) if "quantiles" in options else (y, np.stack([y, y + 1], 1)):
        target = make_regression_target(values, np.ones(len(y)), **options)
        loaded = target_from_json(target.to_json())
        assert type(loaded) is type(target)
        assert loaded.to_json() == target.to_json()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantiles": [0.9, 0.1]}, "increasing numbers between 0 and 1"),
        ({"quantiles": "median"}, "increasing numbers between 0 and 1"),
        ({"quantiles": [0.5], "loss": "gamma"}, "no loss beside quantiles"),
        ({"loss": "mse"}, "unknown loss 'mse'"),
        ({"loss": "gamma"}, "expected numbers > 0"),
        ({"loss": "poisson", "target_scaling": "quantile"}, "target_scaling='quantile'"),
        ({"loss": lambda p, t: (p - t).square().mean()}, "returns the loss of each row"),
    ],
)
def test_invalid_settings_are_refused(options, message):
    X, y = make_table(40)
    with pytest.raises(UserError, match=message):
        TabularTransformerRegressor(**SMALL, **options).fit(X, y)
