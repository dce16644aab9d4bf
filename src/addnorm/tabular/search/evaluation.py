"""Evaluation of one trial: a fit and a score for each split, ended early if it is unpromising."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.metrics import get_scorer

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.tabular.columns.reader import Column
from addnorm.tabular.dataset import select_rows
from addnorm.tabular.search.searchers import Proposal, has_worse_scores
from addnorm.tabular.search.trials import COMPLETE, FAILED, PRUNED, Trial
from addnorm.tabular.task_setup import split_rows

MIN_PROBABILITY = 1e-15
"""Smallest probability in the log loss."""


class _Pruned(Exception):
    """A trial is worse than others were at the same epoch."""


class OutOfTime(Exception):
    """The time budget of a search is used up."""


class SearchData(NamedTuple):
    """Checked table, target and splits of a search."""

    X: Any
    """Pandas frame or array."""
    y: Any
    """Pandas series, or array of several targets."""
    weights: np.ndarray | None
    splits: Sequence[tuple[np.ndarray, np.ndarray]]
    """Indices of training and test rows."""

    def training_rows(self, split: int, fraction: float, *, classify: bool) -> np.ndarray:
        """Return the indices of the training rows of a split, or of a fraction of them."""
        rows = self.splits[split][0]
        if fraction >= 1:
            return rows
        labels = self.y.iloc[rows] if classify else np.zeros(len(rows))
        kept, _ = split_rows(
            labels, 1 - fraction, classify=classify, seed=derive_seed(split, "fraction") % 2**32
        )
        return rows[kept]


def evaluate_trial(
    estimator: Any,
    proposal: Proposal,
    data: SearchData,
    *,
    earlier: Sequence[Trial],
    scorer: Callable[..., float],
    pruning: bool,
    deadline: float,
) -> Trial:
    """Fit and score an estimator with the proposed parameters on each split.

    Args:
        estimator: unfitted estimator, which is cloned
        proposal: parameters and fraction of the rows
        data: table, target and splits
        earlier: trials so far
        scorer: maps (estimator, X, y) to a score; greater is better
        pruning: whether to end unpromising trials early
        deadline: time of `time.monotonic` at which the trial is given up

    Raises:
        OutOfTime: at the deadline
        UserError: if the first trial fails, whose parameters are those of the estimator
    """
    scores, seconds, losses = list[float](), list[float](), list[float]()
    state, error = COMPLETE, ""

    def monitor(metrics: Mapping[str, float]) -> None:
        if time.monotonic() >= deadline:
            raise OutOfTime
        if scores or "valid" not in metrics:  # only the first split has a curve
            return
        losses.append(metrics["valid"])
        if pruning and proposal.is_unpromising(losses):
            raise _Pruned

    try:
        for split, (_, test) in enumerate(data.splits):
            model = clone(estimator).set_params(**proposal.params)
            train = data.training_rows(split, proposal.fraction, classify=is_classifier(model))
            weights = None if data.weights is None else data.weights[train]
            model._epoch_monitor = monitor
            started = time.monotonic()
            try:
                model.fit(select_rows(data.X, train), _select(data.y, train), sample_weight=weights)
            finally:
                seconds.append(time.monotonic() - started)
            del model._epoch_monitor
            scores.append(float(scorer(model, select_rows(data.X, test), _select(data.y, test))))
            if not np.isfinite(scores[-1]):
                raise ValueError(f"expected a finite score, got {scores[-1]}")
            is_last = split == len(data.splits) - 1
            if pruning and not is_last and has_worse_scores(scores, earlier, proposal.fraction):
                raise _Pruned
    except _Pruned:
        state = PRUNED
    except (ValueError, RuntimeError, MemoryError) as problem:
        if not earlier:
            raise UserError(f"the first trial failed: {problem}") from None
        state, error = FAILED, " ".join(str(problem).split())[:300]
    params = {name: _to_scalar(value) for name, value in proposal.params.items()}
    return Trial(len(earlier), params, state, scores, seconds, losses, proposal.fraction, error)


def make_search_scorer(estimator: Any, scoring: Any) -> tuple[str, Callable[..., float]]:
    """Return the name and the function of a metric for which greater is better.

    None selects the negative log loss for classes, the negative RMSE for numbers and the score of
    the estimator for quantiles.
    """
    if scoring is None:
        if is_classifier(estimator):
            return "neg_log_loss", negative_log_loss
        if estimator.quantiles is not None:
            return "score", lambda model, X, y: float(model.score(X, y))
        scoring = "neg_root_mean_squared_error"
    if callable(scoring):
        return getattr(scoring, "__name__", str(scoring)), scoring
    try:
        return str(scoring), get_scorer(scoring)
    except (ValueError, TypeError):  # InvalidParameterError is a ValueError
        raise UserError(
            "scoring: expected a name of sklearn.metrics.get_scorer_names() or a function of "
            f"estimator, X and y, got {scoring!r}"
        ) from None


def negative_log_loss(model: Any, X: Any, y: Any) -> float:
    """Return the mean log probability of the true classes.

    A class that the training rows of a split lack counts with a probability of almost 0.
    """
    probabilities, y = model.predict_proba(X), np.asarray(y)
    codes = {label: code for code, label in enumerate(model.classes_.tolist())}
    true = np.array([codes.get(label, -1) for label in y.tolist()])
    chosen = np.where(true >= 0, probabilities[np.arange(len(y)), true.clip(0)], 0.0)
    return float(np.log(chosen.clip(MIN_PROBABILITY)).mean())


def table_digest(columns: Sequence[Column], y: Any, weights: np.ndarray | None) -> str:
    """Return a checksum of a table and its target, to notice that a resumed search has others."""
    digest = hashlib.sha256()
    for column in columns:
        digest.update(f"{column.name}\0{column.kind}\0{len(column.values)}\0".encode())
        _update(digest, column.values)
    _update(digest, np.asarray(y))
    if weights is not None:
        _update(digest, weights)
    return digest.hexdigest()


def _update(digest: Any, values: np.ndarray) -> None:
    if values.dtype.kind in "biuf":
        digest.update(np.ascontiguousarray(values).tobytes())
    else:
        texts = (str(each).encode(errors="backslashreplace") for each in values.ravel())
        digest.update(b"\0".join(texts))


def _select(y: Any, rows: np.ndarray) -> Any:
    return y.iloc[rows] if hasattr(y, "iloc") else y[rows]


def _to_scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
