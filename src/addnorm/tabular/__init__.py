"""Transformers for tables that behave like estimators of scikit-learn."""

from pathlib import Path

from addnorm.tabular.calibration import Reliability
from addnorm.tabular.classifier import TabularTransformerClassifier
from addnorm.tabular.explain import Explanation
from addnorm.tabular.regressor import TabularTransformerRegressor
from addnorm.tabular.store import load_estimator

__all__ = [
    "Explanation",
    "Reliability",
    "TabularTransformerClassifier",
    "TabularTransformerRegressor",
    "load",
]


def load(path: str | Path) -> TabularTransformerClassifier | TabularTransformerRegressor:
    """An estimator that was saved, of whichever kind."""
    known = (TabularTransformerClassifier, TabularTransformerRegressor)
    return load_estimator(path, {kind.__name__: kind for kind in known})
