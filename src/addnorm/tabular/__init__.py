"""scikit-learn estimators that fit Transformers to tables."""

from pathlib import Path

from addnorm.tabular.classifier import TabularTransformerClassifier
from addnorm.tabular.inspection.calibration import Reliability
from addnorm.tabular.inspection.dependence import PartialDependence
from addnorm.tabular.inspection.explanations import Explanation
from addnorm.tabular.inspection.permutation import PermutationImportances
from addnorm.tabular.inspection.shap_adapter import ShapAdapter
from addnorm.tabular.io.store import load_estimator
from addnorm.tabular.regressor import TabularTransformerRegressor
from addnorm.tabular.search.dimensions import Choice, Float, Integer
from addnorm.tabular.search.search import TabularSearch
from addnorm.tabular.search.spaces import search_space
from addnorm.tabular.streaming.fit_parts import fit_parts

__all__ = [
    "Choice",
    "Explanation",
    "Float",
    "Integer",
    "PartialDependence",
    "PermutationImportances",
    "Reliability",
    "ShapAdapter",
    "TabularSearch",
    "TabularTransformerClassifier",
    "TabularTransformerRegressor",
    "fit_parts",
    "load",
    "search_space",
]


def load(path: str | Path) -> TabularTransformerClassifier | TabularTransformerRegressor:
    """Load a saved classifier or regressor from a folder."""
    classes = (TabularTransformerClassifier, TabularTransformerRegressor)
    return load_estimator(path, {each.__name__: each for each in classes})
