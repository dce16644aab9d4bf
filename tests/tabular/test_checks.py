"""scikit-learn's own checks, all of them, with no expected failure."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor

ESTIMATORS = [TabularTransformerClassifier, TabularTransformerRegressor]
SMALL = {"dim": 16, "depth": 1, "heads": 2, "lr": 1e-2, "max_epochs": 15}
SMALLEST = {"dim": 8, "depth": 1, "heads": 1, "max_epochs": 1}
LEARNS = ("check_classifiers_train", "check_regressors_train", "check_class_weight_classifiers")


def names(check):
    return check.func.__name__


@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API")
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_every_check_that_needs_no_learning_passes(kind):
    """Those of behaviour, in a few steps each; the slow test has all."""
    for estimator, check in estimator_checks_generator(kind(**SMALLEST)):
        if names(check) not in (*LEARNS, "check_array_api_input"):
            check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API")
@parametrize_with_checks(
    [kind(**SMALL, model=model) for kind in ESTIMATORS for model in ("ft_transformer", "saint")]
)
def test_every_check_passes(estimator, check):
    check(estimator)
