"""Transformers for tables that behave like estimators of scikit-learn."""

from pathlib import Path

from addnorm.tabular.classifier import TabularTransformerClassifier
from addnorm.tabular.inspection.calibration import Reliability
from addnorm.tabular.inspection.explanations import Explanation
from addnorm.tabular.io.store import load_estimator
from addnorm.tabular.regressor import TabularTransformerRegressor

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
