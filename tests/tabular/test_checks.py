"""scikit-learn's own checks, all of them, with no expected failure."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from addnorm.models.tabular import MODELS
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor

ESTIMATORS = [TabularTransformerClassifier, TabularTransformerRegressor]
SMALL = {"dim": 16, "depth": 1, "lr": 1e-2, "max_epochs": 15}
SMALLEST = {"dim": 8, "depth": 1, "heads": 1, "max_epochs": 1}
LEARNS = ("check_classifiers_train", "check_regressors_train", "check_class_weight_classifiers")


def quick():
    """Every check of behaviour; those that want something learned are slow."""
    for kind in ESTIMATORS:
        for estimator, check in estimator_checks_generator(kind(**SMALLEST)):
            name = check.func.__name__
            if name not in LEARNS:
                yield pytest.param(estimator, check, id=f"{kind.__name__[18:]}-{name}")


@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API")
@pytest.mark.parametrize(("estimator", "check"), list(quick()))
def test_every_check_of_behaviour_passes(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API")
@parametrize_with_checks(
    [
        kind(**SMALL, model=model, heads=None if model == "mlp" else 2)
        for kind in ESTIMATORS
        for model in MODELS
    ]
)
def test_every_check_passes(estimator, check):
    check(estimator)
