"""Transformers for tables that behave like estimators of scikit-learn."""

from addnorm.tabular.calibration import Reliability
from addnorm.tabular.classifier import TabularTransformerClassifier
from addnorm.tabular.explain import Explanation
from addnorm.tabular.regressor import TabularTransformerRegressor

__all__ = [
    "Explanation",
    "Reliability",
    "TabularTransformerClassifier",
    "TabularTransformerRegressor",
]
