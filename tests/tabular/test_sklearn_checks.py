"""All estimator checks of scikit-learn for every model, without expected failures."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from addnorm.models.tabular import MODELS
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor

ESTIMATORS = [TabularTransformerClassifier, TabularTransformerRegressor]
SMALLEST = {"dim": 8, "depth": 1, "max_epochs": 1}
SMALL = {"dim": 16, "depth": 1, "lr": 1e-2, "max_epochs": 15}
LEARNS = ("check_classifiers_train", "check_regressors_train", "check_class_weight_classifiers")
"""Checks that require a trained model."""


def iter_checks(model):
    heads = {} if "heads" in MODELS[model].unused_fields else {"heads": 2}
    for kind in ESTIMATORS:
        for size in (SMALLEST, SMALL):
            for estimator, check in estimator_checks_generator(kind(model=model, **size, **heads)):
                name = check.func.__name__
                if (name in LEARNS) != (size is SMALL):
                    continue
                is_fast = model == "ft_transformer" and size is SMALLEST
                yield pytest.param(
                    estimator,
                    check,
                    id=f"{model}-{kind.__name__[18:]}-{name}",
                    marks=() if is_fast else pytest.mark.slow,
                )


@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API")
@pytest.mark.parametrize(
    ("estimator", "check"), [each for model in MODELS for each in iter_checks(model)]
)
def test_estimator_check(estimator, check):
    check(estimator)
