"""Test scores of a fit, and of gradient boosting on the same rows."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import (
    accuracy_score,
    log_loss,
    mean_absolute_error,
    mean_pinball_loss,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

from addnorm.tabular.columns.reader import empty_columns, read_column

MAX_CATEGORIES = 255
"""Largest number of categories that scikit-learn's gradient boosting accepts per column."""


def score_estimator(model: Any, X: Any, y: Any) -> dict[str, float]:
    """Return test scores of a fitted model by metric.

    Classes that were absent from the training rows count as errors for the accuracy and are left
    out of the log loss and the AUC.
    """
    if not isinstance(model, ClassifierMixin):
        predictions = model.predict(X)
        if predictions.ndim == 2:
            return _score_quantiles(predictions, np.asarray(y, float), model.quantiles)
        return {
            "rmse": float(root_mean_squared_error(y, predictions)),
            "mae": float(mean_absolute_error(y, predictions)),
            "r2": float(r2_score(y, predictions)) if len(y) > 1 else np.nan,
        }
    probabilities, y = model.predict_proba(X), np.asarray(y)
    known = np.isin(y, model.classes_)
    scores = {"accuracy": float(accuracy_score(y, model.classes_[probabilities.argmax(1)]))}
    if known.any():
        scores["log loss"] = float(log_loss(y[known], probabilities[known], labels=model.classes_))
    if len(np.unique(y[known])) == len(model.classes_):
        score = probabilities[known][:, 1] if len(model.classes_) == 2 else probabilities[known]
        scores["auc"] = float(roc_auc_score(y[known], score, multi_class="ovr"))
    return scores


def _score_quantiles(
    predictions: np.ndarray, y: np.ndarray, quantiles: Sequence[float]
) -> dict[str, float]:
    """Return the mean pinball loss, and the fraction of values below each quantile."""
    columns = list(zip(quantiles, predictions.T, strict=True))
    losses = [mean_pinball_loss(y, each, alpha=level) for level, each in columns]
    below = {f"below {level:g}": float((y < each).mean()) for level, each in columns}
    return {"pinball": float(np.mean(losses)), **below}


def gradient_boosting_scores(
    X: Any,
    y: Any,
    X_test: Any,
    y_test: Any,
    *,
    types: Mapping[str, str],
    classify: bool,
    seed: int,
    quantiles: Sequence[float] | None = None,
) -> dict[str, float]:
    """Fit scikit-learn's histogram gradient boosting with default settings; return its scores.

    quantiles: quantiles to predict, with one model for each
    """
    table, is_categorical = _encode_for_trees(X, X, types)
    test_table, _ = _encode_for_trees(X_test, X, types)
    estimator = HistGradientBoostingClassifier if classify else HistGradientBoostingRegressor
    options = {"categorical_features": is_categorical, "random_state": seed}
    started = time.monotonic()
    if quantiles is None:
        model = estimator(**options).fit(table, y)
        scores = score_estimator(model, test_table, y_test)
    else:
        models = [
            HistGradientBoostingRegressor(loss="quantile", quantile=level, **options).fit(table, y)
            for level in quantiles
        ]
        predictions = np.stack([each.predict(test_table) for each in models], 1)
        scores = _score_quantiles(predictions, np.asarray(y_test, float), quantiles)
    return scores | {"seconds": time.monotonic() - started}


def _encode_for_trees(
    X: Any, train_table: Any, types: Mapping[str, str]
) -> tuple[np.ndarray, list[bool]]:
    """Return the columns as a float array and a flag for each that marks it as categorical.

    Strings become the ranks of the most frequent categories of the training table. A column without
    any training value is dropped: gradient boosting cannot bin it.
    """
    columns, is_categorical = [], []
    for name in X.columns:
        train, column = (read_column(name, each[name], types[name]) for each in (train_table, X))
        if empty_columns([train]):
            continue
        if column.values.dtype == np.float64:
            columns.append(column.values)
            is_categorical.append(False)
            continue
        counts = Counter(text for text in train.values if text is not None)
        frequent = sorted(counts, key=lambda text: (-counts[text], text))[:MAX_CATEGORIES]
        codes = {text: float(code) for code, text in enumerate(frequent)}
        columns.append(np.array([codes.get(text, np.nan) for text in column.values]))
        is_categorical.append(True)
    return np.stack(columns, 1), is_categorical
