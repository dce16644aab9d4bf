"""scikit-learn estimators that fit Transformers to tables."""

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
    """Load a saved classifier or regressor from a folder."""
    classes = (TabularTransformerClassifier, TabularTransformerRegressor)
    return load_estimator(path, {each.__name__: each for each in classes})
