"""Settings and tables that are refused."""

import numpy as np
import pandas as pd
import pytest

from addnorm.core.errors import UserError
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import read_columns
from addnorm.tabular.params import model_config, resolve_threads
from tests.tabular.sample_tables import FRAME, LABELS, NUMBERS, SUMS, classifier, regressor


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model": "fttransformer"},
            "unknown model 'fttransformer'; did you mean 'ft_transformer'",
        ),
        ({"wiring": "postln"}, "unknown wiring 'postln'"),
        ({"norm": "layr"}, "unknown norm 'layr'"),
        ({"optimizer": "adamx"}, "unknown optimizer 'adamx'"),
        ({"schedule": "cos"}, "unknown schedule 'cos'"),
        ({"batch_size": 0}, "batch_size is 'auto' or a whole number from 1, got 0"),
        ({"max_epochs": 0}, "max_epochs is 'auto' or a whole number from 1, got 0"),
        ({"patience": 1.5}, "patience is a whole number from 1, got 1.5"),
        ({"lr": -1}, "lr must be a positive number"),
        ({"early_stopping": "False"}, "early_stopping is True, False or 'auto', got 'False'"),
        ({"early_stopping": "yes"}, "early_stopping is True, False or 'auto', got 'yes'"),
        ({"early_stopping": True, "validation_fraction": 0.001}, "too few to hold out 0.001"),
        ({"validation_fraction": 1.0}, "validation_fraction is a share between 0 and 1, got 1.0"),
        ({"max_seconds": 0}, "max_seconds is a positive number, got 0"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"n_jobs": 0}, "n_jobs is a number of threads, -1 for all, -2 for all but one, got 0"),
        ({"device": "tpux"}, "device 'tpux'"),
        ({"device": None}, "device is a name such as 'cpu' or 'auto', got None"),
        ({"wiring": 3}, "wiring: expected a valid string, got 3"),
        ({"optimizer": None}, "optimizer is a call string, got None"),
        ({"lr": "fast"}, "lr must be a positive number, got 'fast'"),
        ({"average": 1}, "average is a share between 0 and 1, got 1"),
        ({"max_seconds": "long"}, "max_seconds is a positive number, got 'long'"),
        ({"validation_fraction": "x"}, "validation_fraction is a share between 0 and 1, got 'x'"),
        ({"model": "mlp", "heads": 2}, "heads=2 means nothing to mlp; leave heads out"),
        ({"model": "mlp", "attention_dropout": 0.1}, "attention_dropout=0.1 means nothing to mlp"),
        ({"model": "mlp", "activation": "nonsense"}, "unknown activation 'nonsense'"),
        ({"model": "tab_transformer", "numeric": "linear"}, "numeric='linear' means nothing to"),
        ({"importance": "shap"}, "unknown importance 'shap'"),
        ({"model": "mlp", "importance": "rollout"}, "and mlp has none; wanted 'permutation'"),
        ({"target_scaling": "log"}, "unknown target_scaling 'log'"),
        ({"lr": 1e30, "wiring": "none"}, "the loss is not a finite number in the first epoch"),
    ],
)
def test_settings_that_make_no_sense(changes, words):
    with pytest.raises(ValueError, match=words):
        regressor(**changes).fit(NUMBERS, SUMS)


@pytest.mark.parametrize(
    ("X", "y", "words"),
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
def test_tables_that_make_no_sense(X, y, words):
    with pytest.raises(ValueError, match=words):
        classifier(max_epochs=1).fit(X, y)


def test_class_weights_that_make_no_sense():
    for told in (np.ones(2), "even", [1, 2]):
        with pytest.raises(UserError, match="class_weight is a dict from classes to weights"):
            classifier(class_weight=told).fit(NUMBERS, SUMS > 0)


def test_more_tables_that_make_no_sense():
    with pytest.raises(ValueError, match="needs a target that varies, but every row has 3"):
        regressor().fit(NUMBERS, np.full(40, 3.0))
    with pytest.raises(ValueError, match="Sample weights must contain at least one non-zero"):
        regressor().fit(NUMBERS, SUMS, sample_weight=np.zeros(40))
    with pytest.raises(ValueError, match="unknown calibration 'platt'"):
        classifier(calibration="platt").fit(FRAME, LABELS)
    made = classifier(max_epochs=1).fit(FRAME, LABELS)
    with pytest.raises(
        ValueError, match="Feature names seen at fit time, yet now missing:\n- flag"
    ):
        made.predict(FRAME.drop(columns="flag"))
    with pytest.raises(ValueError, match="column 'number' is numeric"):
        made.predict(FRAME.assign(number="many"))


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("ft_transformer", ("pre_ln(first_norm=False)", 96, 2, 8, "reglu", "piecewise")),
        ("tab_transformer", ("post_ln", 32, 6, 8, "gelu", "linear")),
        ("saint", ("res_post", 32, 1, 4, "geglu", "mlp")),
        ("mlp", ("pre_ln", 96, 2, 8, "relu", "piecewise")),
    ],
)
def test_every_model_has_settings_of_its_own(model, wanted):
    estimator = TabularTransformerClassifier(model=model)
    encoder = TableEncoder.from_columns(read_columns(FRAME), np.ones(len(FRAME)))
    config = model_config(estimator, encoder, 2)
    names = ("wiring", "dim", "depth", "heads", "activation", "numeric")
    assert tuple(getattr(config, name) for name in names) == wanted


def test_threads_are_counted_as_joblib_counts_them(monkeypatch):
    monkeypatch.setattr("addnorm.tabular.params.count_cores", lambda: 4)
    asked = {None: None, 3: 3, -1: 4, -2: 3, -9: 1}
    for given, wanted in asked.items():
        assert resolve_threads(TabularTransformerRegressor(n_jobs=given)) == wanted


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize("hole", [None, np.nan, pd.NA, pd.NaT])
def test_a_target_with_holes_is_refused(make, hole):
    y = pd.Series([1.0, 2.0] * 19 + [1.0, hole], dtype=object)
    for target in (y, y.tolist()):
        with pytest.raises(ValueError, match="Input y contains NaN"):
            make(max_epochs=1).fit(NUMBERS, target)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_moments_are_no_target(make):
    for y in (pd.date_range("2026-01-01", periods=40), pd.to_timedelta(np.arange(40), "D")):
        with pytest.raises(ValueError, match="Input y holds moments or spans of time"):
            make(max_epochs=1).fit(NUMBERS, y)


def test_classes_of_several_types_are_refused():
    with pytest.raises(ValueError, match="classes of several types"):
        classifier(max_epochs=1).fit(NUMBERS, np.array([1, "a"] * 20, dtype=object))


def test_a_list_is_no_model():
    with pytest.raises(ValueError, match="unknown model"):
        regressor().set_params(model=["mlp"]).fit(NUMBERS, SUMS)


def test_numbers_of_numpy_are_numbers():
    whole = {name: np.int64(2) for name in ("dim", "depth", "heads", "ffn_dim", "max_epochs")}
    more = {"batch_size": np.int32(16), "patience": np.int8(2), "n_jobs": np.int64(1)}
    real = {"lr": np.float32(1e-3), "dropout": np.float64(0.1), "average": np.float32(0.5)}
    settings = {**whole, **more, **real, "early_stopping": np.bool_(True)}
    made = classifier(**settings).fit(NUMBERS, SUMS > 0)
    assert len(made.history_) == 2 and "valid" in made.history_[0]
    assert len(made.pretrain(NUMBERS, epochs=np.int64(1)).pretraining_) == 1


@pytest.mark.parametrize("epochs", [0, 2.5, "auto", True])
def test_epochs_of_pretraining_are_a_whole_number(epochs):
    with pytest.raises(UserError, match="epochs is None or a whole number from 1, got"):
        regressor().pretrain(NUMBERS, epochs=epochs)
