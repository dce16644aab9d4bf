"""Settings and tables that are refused."""

import numpy as np
import pytest

from tests.tabular.tables import FRAME, LABELS, NUMBERS, SUMS, classifier, regressor


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
        ({"early_stopping": "yes"}, "early_stopping is True, False or 'auto', got 'yes'"),
        ({"early_stopping": True, "validation_fraction": 0.001}, "too few to hold out 0.001"),
        ({"validation_fraction": 1.0}, "validation_fraction is a share between 0 and 1, got 1.0"),
        ({"max_seconds": 0}, "max_seconds is a positive number, got 0"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"n_jobs": 0}, "n_jobs is a number of threads, -1 for all, -2 for all but one, got 0"),
        ({"device": "tpux"}, "device 'tpux'"),
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
