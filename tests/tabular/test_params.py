"""Validation of parameters and tables."""

import numpy as np
import pandas as pd
import pytest

from addnorm.core.errors import TableWarning, UserError
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor, load
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import read_columns
from addnorm.tabular.params import (
    AUTO_DEFAULTS,
    make_model_config,
    make_training_config,
    resolve_threads,
)
from tests.tabular.sample_tables import FRAME, LABELS, NUMBERS, SUMS, classifier, regressor


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "fttransformer"},
            "unknown model 'fttransformer'; did you mean 'ft_transformer'",
        ),
        ({"wiring": "postln"}, "unknown wiring 'postln'"),
        ({"norm": "layr"}, "unknown norm 'layr'"),
        ({"optimizer": "adamx"}, "unknown optimizer 'adamx'"),
        ({"schedule": "cos"}, "unknown schedule 'cos'"),
        ({"batch_size": 0}, "batch_size: expected 'auto' or an integer >= 1, got 0"),
        ({"max_epochs": 0}, "max_epochs: expected 'auto' or an integer >= 1, got 0"),
        (
            {"max_epochs": 2**31},
            "max_epochs: expected 'auto' or an integer up to 1,000,000, got 2147483648; limit the "
            "time with max_seconds",
        ),
        ({"patience": 1.5}, "patience: expected an integer >= 1, got 1.5"),
        ({"lr": -1}, "lr: expected a finite number >= 0, got -1"),
        (
            {"early_stopping": "False"},
            "early_stopping: expected True, False or 'auto', got 'False'",
        ),
        ({"early_stopping": "yes"}, "early_stopping: expected True, False or 'auto', got 'yes'"),
        (
            {"early_stopping": True, "validation_fraction": 0.001},
            "expected enough distinct rows for validation_fraction=0.001, got 40",
        ),
        (
            {"validation_fraction": 1.0},
            "validation_fraction: expected a fraction between 0 and 1, got 1.0",
        ),
        ({"max_seconds": 0}, "max_seconds: expected a positive number, got 0"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"n_jobs": 0}, "n_jobs: expected a number of threads, -1 for all cores .*, got 0"),
        ({"device": "tpux"}, "device 'tpux'"),
        ({"device": None}, "device: expected a name such as 'cpu' or 'auto', got None"),
        ({"wiring": 3}, "wiring: expected a valid string, got 3"),
        ({"optimizer": None}, "optimizer: expected a call string such as 'adamw', got None"),
        ({"lr": "fast"}, "lr: expected a finite number >= 0, got 'fast'"),
        ({"average": 1}, "average: expected a fraction between 0 and 1, got 1"),
        ({"max_seconds": "long"}, "max_seconds: expected a positive number, got 'long'"),
        (
            {"validation_fraction": "x"},
            "validation_fraction: expected a fraction between 0 and 1, got 'x'",
        ),
        (
            {"model": "mlp", "heads": 2},
            "heads: expected None because mlp does not use it, got 2; leave heads out",
        ),
        ({"model": "mlp", "attention_dropout": 0.1}, "attention_dropout: expected None .* got 0.1"),
        ({"model": "mlp", "activation": "nonsense"}, "unknown activation 'nonsense'"),
        (
            {"model": "tab_transformer", "numeric": "linear"},
            "numeric: expected None .* got 'linear'",
        ),
        ({"importance": "shap"}, "unknown importance 'shap'"),
        (
            {"model": "auto", "heads": 2},
            "heads: expected None because mlp .*; leave heads out or set model='ft_transformer'",
        ),
        (
            {"model": "auto", "importance": "rollout"},
            "importance: expected 'permutation' or 'auto', got 'rollout', .* of mlp does not",
        ),
        (
            {"model": "mlp", "importance": "rollout"},
            "importance: expected 'permutation' or 'auto', got 'rollout', .* of mlp does not",
        ),
        ({"target_scaling": "log"}, "unknown target_scaling 'log'"),
        ({"lr": 1e30, "wiring": "none"}, "lr: expected a finite training loss in the first epoch"),
    ],
)
def test_invalid_parameters_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        regressor(**changes).fit(NUMBERS, SUMS)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (FRAME, None, "requires y to be passed, but the target y is None"),
        (FRAME, ["yes"] * 60, "needs samples of at least 2 classes in the data"),
        (FRAME, LABELS[:9], "inconsistent numbers of samples"),
        (FRAME, [np.nan] * 60, "Input y contains NaN"),
        (FRAME.head(0), [], "0 sample"),
        (FRAME[[]], LABELS, "0 feature"),
        (FRAME.assign(empty=np.nan), LABELS, "columns without any value: 'empty'"),
        (NUMBERS[0], [0, 1, 0], "Expected 2D array, got 1D array instead"),
    ],
)
def test_invalid_tables_are_rejected(X, y, message):
    with pytest.raises(ValueError, match=message):
        classifier(max_epochs=1).fit(X, y)


def test_invalid_class_weights_are_rejected():
    for weights in (np.ones(2), "even", [1, 2]):
        with pytest.raises(UserError, match="class_weight: expected a dict from class to weight"):
            classifier(class_weight=weights).fit(NUMBERS, SUMS > 0)


def test_constant_regression_target_is_predicted_with_a_warning(tmp_path):
    with pytest.warns(TableWarning, match="y is 3 in every row, and so will be every prediction"):
        estimator = regressor().fit(NUMBERS, np.full(40, 3.0))
    assert estimator.predict(NUMBERS + 5) == pytest.approx(np.full(40, 3.0), rel=1e-9)
    estimator.save(tmp_path)
    assert load(tmp_path).predict(NUMBERS) == pytest.approx(np.full(40, 3.0), rel=1e-9)


def test_zero_weights_and_changed_columns_are_rejected():
    with pytest.raises(ValueError, match="Sample weights must contain at least one non-zero"):
        regressor().fit(NUMBERS, SUMS, sample_weight=np.zeros(40))
    with pytest.raises(ValueError, match="unknown calibration 'platt'"):
        classifier(calibration="platt").fit(FRAME, LABELS)
    estimator = classifier(max_epochs=1).fit(FRAME, LABELS)
    with pytest.raises(
        ValueError, match="Feature names seen at fit time, yet now missing:\n- flag"
    ):
        estimator.predict(FRAME.drop(columns="flag"))
    with pytest.raises(ValueError, match="column 'number': expected numeric values, got 'many'"):
        estimator.predict(FRAME.assign(number="many"))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("ft_transformer", ("pre_ln(first_norm=False)", 96, 2, 8, "reglu", "piecewise")),
        ("tab_transformer", ("post_ln", 32, 6, 8, "gelu", "linear")),
        ("saint", ("res_post", 32, 1, 4, "geglu", "mlp")),
        ("mlp", ("pre_ln", 96, 2, 8, "relu", "piecewise")),
        ("auto", ("pre_ln", AUTO_DEFAULTS["dim"], 2, 8, "relu", "piecewise")),
    ],
)
def test_each_model_has_its_own_defaults(model, expected):
    estimator = TabularTransformerClassifier(model=model)
    encoder = TableEncoder.from_columns(read_columns(FRAME), np.ones(len(FRAME)))
    config = make_model_config(estimator, encoder, 2)
    names = ("wiring", "dim", "depth", "heads", "activation", "numeric")
    assert tuple(getattr(config, name) for name in names) == expected


@pytest.mark.parametrize(
    ("kind", "params", "expected"),
    [
        (TabularTransformerClassifier, {}, AUTO_DEFAULTS["dim"]),
        (TabularTransformerClassifier, {"dim": 24}, 24),
        (TabularTransformerClassifier, {"ffn_dim": 40}, 40),
        (TabularTransformerClassifier, {"model": "mlp"}, None),  # the model's own default
        (TabularTransformerRegressor, {}, None),
    ],
)
def test_hidden_width_of_the_default(kind, params, expected):
    encoder = TableEncoder.from_columns(read_columns(FRAME), np.ones(len(FRAME)))
    assert make_model_config(kind(**params), encoder, 2).ffn_dim == expected


def test_n_jobs_follows_joblib(monkeypatch):
    monkeypatch.setattr("addnorm.tabular.params.count_cores", lambda: 4)
    threads = {None: None, 3: 3, -1: 4, -2: 3, -9: 1}
    for n_jobs, expected in threads.items():
        assert resolve_threads(TabularTransformerRegressor(n_jobs=n_jobs)) == expected


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
def test_missing_targets_are_rejected(make, missing):
    y = pd.Series([1.0, 2.0] * 19 + [1.0, missing], dtype=object)
    for target in (y, y.tolist()):
        with pytest.raises(ValueError, match="Input y contains NaN"):
            make(max_epochs=1).fit(NUMBERS, target)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_datetime_targets_are_rejected(make):
    for y in (pd.date_range("2026-01-01", periods=40), pd.to_timedelta(np.arange(40), "D")):
        with pytest.raises(
            ValueError, match="y: expected numbers or classes, got datetimes or timedeltas"
        ):
            make(max_epochs=1).fit(NUMBERS, y)


def test_classes_of_several_types_are_rejected():
    with pytest.raises(ValueError, match="y: expected class labels of one type, got several types"):
        classifier(max_epochs=1).fit(NUMBERS, np.array([1, "a"] * 20, dtype=object))


def test_model_must_be_a_string():
    with pytest.raises(ValueError, match="unknown model"):
        regressor().set_params(model=["mlp"]).fit(NUMBERS, SUMS)


def test_numpy_scalars_are_valid_parameters():
    sizes = {name: np.int64(2) for name in ("dim", "depth", "heads", "ffn_dim", "max_epochs")}
    counts = {"batch_size": np.int32(16), "patience": np.int8(2), "n_jobs": np.int64(1)}
    rates = {"lr": np.float32(1e-3), "dropout": np.float64(0.1), "average": np.float32(0.5)}
    params = {**sizes, **counts, **rates, "early_stopping": np.bool_(True)}
    estimator = classifier(**params).fit(NUMBERS, SUMS > 0)
    assert len(estimator.history_) == 2 and "valid" in estimator.history_[0]
    assert len(estimator.pretrain(NUMBERS, epochs=np.int64(1)).pretraining_) == 1


@pytest.mark.parametrize("epochs", [0, 2.5, "auto", True])
def test_pretraining_epochs_must_be_a_positive_integer(epochs):
    with pytest.raises(UserError, match="epochs: expected None or an integer >= 1, got"):
        regressor().pretrain(NUMBERS, epochs=epochs)


@pytest.mark.parametrize(
    ("params", "members", "lr"),
    [
        ({}, AUTO_DEFAULTS["members"], 3e-3),
        ({"members": 1}, 1, 1e-3),
        ({"model": "mlp", "members": 4}, 4, 3e-3),
        ({"model": "mlp", "members": 4, "lr": 5e-4}, 4, 5e-4),
        ({"model": "ft_transformer", "members": 4}, 4, 1e-3),
        ({"model": "saint"}, 1, 1e-3),
    ],
)
def test_members_and_learning_rate_of_the_default_and_of_the_models(params, members, lr):
    encoder = TableEncoder.from_columns(read_columns(FRAME), np.ones(len(FRAME)))
    estimator = TabularTransformerRegressor(**params)
    config = make_model_config(estimator, encoder, 1)
    assert config.members == members
    assert make_training_config(estimator, 100, model=config, seed=0).lr == lr


def test_default_estimator_is_saved_with_its_choice(tmp_path):
    estimator = TabularTransformerRegressor(dim=8, max_epochs=1, random_state=0)
    estimator.fit(NUMBERS, SUMS).save(tmp_path)
    loaded = load(tmp_path)
    assert loaded.model == "auto" and loaded.lr is None
    assert loaded.module_.config.model == "mlp"
    np.testing.assert_array_equal(loaded.predict(NUMBERS), estimator.predict(NUMBERS))
