"""Methods of the estimators that inspect a fit."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from addnorm.core.errors import UserError
from addnorm.tabular.dataset import FitData
from addnorm.tabular.inspection.dependence import PartialDependence, compute_dependence
from addnorm.tabular.inspection.importance import MAX_ROWS, REPEATS, ImportancePart
from addnorm.tabular.inspection.permutation import PermutationImportances, permutation_importances
from addnorm.tabular.inspection.shap_adapter import ShapAdapter
from addnorm.tabular.params import resolve_threads
from addnorm.tabular.training.loop import WeightedBatch
from addnorm.tabular.training.torch_context import torch_context


class InspectionMixin:
    """Adds partial dependence and permutation importances of groups to the estimators."""

    def partial_dependence(
        self, X: Any, column: Any, *, max_values: int = 20, max_rows: int = 500
    ) -> PartialDependence:
        """Return the mean prediction over the values of one column.

        `.save("dependence.svg")` of the result draws it. `sklearn.inspection` works, too.

        Args:
            X: table with the columns of the fit
            column: name or position of a column with numbers, datetimes or categories
            max_values: largest number of values of the column
            max_rows: largest number of rows to average over
        """
        check_is_fitted(self, "module_")
        checked = self._check_table(X, reset=False)  # type: ignore[attr-defined]
        if not hasattr(checked, "iloc"):
            checked = checked.toarray() if hasattr(checked, "toarray") else checked
        return compute_dependence(self, checked, column, max_values=max_values, max_rows=max_rows)

    def shap_adapter(self, background: Any, *, max_rows: int = 100) -> ShapAdapter:
        """Return the estimator as a function of numbers, for the explainers of the package shap.

        Args:
            background: table with the columns of the fit, whose cells replace those of a row
            max_rows: largest number of background rows
        """
        check_is_fitted(self, "module_")
        return ShapAdapter(self, background, max_rows=max_rows)

    def permutation_importances(
        self,
        groups: Mapping[str, Any] | None = None,
        X: Any = None,
        y: Any = None,
        *,
        repeats: int = REPEATS,
    ) -> PermutationImportances:
        """Return the increase of the loss when columns are shuffled, alone or in groups.

        Correlated columns stand in for each other, so that each alone seems unimportant; in a group
        they are shuffled together. `.save("importances.svg")` of the result draws them.

        Args:
            groups: columns of each group by its name; None for one group per column
            X: rows to measure on; the validation rows of the fit if None
            y: target of X
            repeats: number of shuffles
        """
        check_is_fitted(self, "module_")
        estimator: Any = self
        if (X is None) != (y is None):
            raise UserError("expected X and y, or neither")
        if X is None:
            parts = getattr(estimator, "_importance_parts", [])
            if not parts:
                raise UserError(
                    "X: expected rows to measure on, because a loaded estimator has none of its own"
                )
        else:
            parts = [_measured_rows(estimator, X, y)]
        with torch_context(threads=resolve_threads(estimator)):
            return permutation_importances(parts, estimator.encoder_.names, groups, repeats)


def _measured_rows(estimator: Any, X: Any, y: Any) -> ImportancePart:
    """Return the network of an estimator with labeled rows."""
    inputs = estimator._check_input(X, y, None, reset=False)
    values = np.asarray(y)
    if is_classifier(estimator):
        unknown = sorted({*values.tolist()} - {*estimator.classes_.tolist()}, key=str)
        if unknown:
            raise UserError(
                f"y: expected classes of the fit, {estimator.classes_.tolist()[:20]}, got "
                f"{unknown[0]!r}"
            )
        values = np.searchsorted(estimator.classes_, values)
    else:
        values = values.astype(np.float64)
    rows = WeightedBatch(
        estimator.encoder_.encode(inputs.X),
        estimator.target_.encode(values),
        torch.from_numpy(inputs.weights),
    )
    data = FitData(estimator.encoder_, estimator.target_, (), estimator.reference_, np.empty(0), 0)
    return ImportancePart(estimator.module_, rows.subsample(MAX_ROWS), data)
