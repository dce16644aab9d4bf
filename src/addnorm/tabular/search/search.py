"""Search for hyperparameters as a scikit-learn meta-estimator."""

import math
import time
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.model_selection import check_cv
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted
from typing_extensions import Self

from addnorm.core.errors import UserError
from addnorm.core.locks import folder_lock
from addnorm.tabular.columns.reader import is_frame, read_columns, to_pandas
from addnorm.tabular.dataset import reject_empty_columns
from addnorm.tabular.estimator import TabularTransformer
from addnorm.tabular.params import resolve_seed
from addnorm.tabular.search.evaluation import (
    OutOfTime,
    SearchData,
    evaluate_trial,
    make_search_scorer,
    table_digest,
)
from addnorm.tabular.search.progress import SearchProgress
from addnorm.tabular.search.searchers import make_searcher
from addnorm.tabular.search.spaces import resolve_space
from addnorm.tabular.search.trials import Trial, TrialLog, best_trial, make_cv_results


def _has(name: str) -> Any:
    """Return a check of `available_if`: whether the searched estimator has a method."""
    return lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), name)


class TabularSearch(MetaEstimatorMixin, BaseEstimator):
    """Search for the hyperparameters of a tabular estimator.

    The first trial has the parameters of the estimator, so that the search does not choose
    parameters that are worse on its splits. Trials that are worse than half of the earlier ones at
    the same epoch of the first split, or after a split, are stopped (pruned).

    Parameters
    ----------
    estimator : TabularTransformerClassifier or TabularTransformerRegressor
        Unfitted estimator. Parameters that it sets are not searched, unless `space` names them.
    space : dict or None, default=None
        Values to try for each parameter: a list, a distribution of scipy, or a `Float`, `Integer`
        or `Choice`. None selects `search_space(estimator.model)`.
    searcher : {"random", "halving", "tpe"}, default="random"
        Independent draws; draws on few rows, of which the best third continues on three times as
        many; or the tree-structured Parzen estimator of Optuna (extra `addnorm[tune]`).
    n_trials : int, default=30
        Number of trials; of "halving", that of the first round.
    max_seconds : float or None, default=None
        Time budget of `fit`, including the trials of an earlier run that is resumed. Trials end so
        that there is time to fit the best one to all rows. The first trial is always finished.
    cv : int or splitter, default=3
        Splits that each trial is scored on.
    scoring : str, callable or None, default=None
        Metric; None selects the log loss for classes and the RMSE for numbers, both negative.
    pruning : bool, default=True
        Whether to stop unpromising trials.
    refit : bool, default=True
        Whether to fit the best parameters to all rows.
    folder : str, Path or None, default=None
        Folder that stores every finished trial. The same search in the same folder resumes.
    random_state : int, RandomState or None, default=None
        Seed of splits and draws, and of the estimator if it has none.
    verbose : bool, default=False
        Whether to print a line for each trial.

    Attributes
    ----------
    best_params_ : dict
        Parameters of the best trial; empty if those of the estimator are best.
    best_score_ : float
        Its mean score over the splits.
    best_index_ : int
        Its number.
    best_estimator_ : estimator
        Estimator with the best parameters, fitted to all rows.
    cv_results_ : dict
        Trials as in `RandomizedSearchCV`, with `state` and `fraction_of_rows`.
    trials_ : list of Trial
        All trials with their validation losses.
    n_splits_ : int
        Number of splits.
    refit_time_ : float
        Seconds of the last fit.
    """

    def __init__(
        self,
        estimator: Any,
        *,
        space: Mapping[str, Any] | None = None,
        searcher: str = "random",
        n_trials: int = 30,
        max_seconds: float | None = None,
        cv: Any = 3,
        scoring: Any = None,
        pruning: bool = True,
        refit: bool = True,
        folder: str | Path | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.estimator = estimator
        self.space = space
        self.searcher = searcher
        self.n_trials = n_trials
        self.max_seconds = max_seconds
        self.cv = cv
        self.scoring = scoring
        self.pruning = pruning
        self.refit = refit
        self.folder = folder
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Search, then fit the best parameters to all rows.

        Args:
            X: table as pandas, polars or Arrow frame, or as 2-D array
            y: (rows) target
            sample_weight: (rows) non-negative weights of the fits; scores are not weighted
            groups: (rows) group of each row, for splitters such as `GroupKFold`
        """
        started = time.monotonic()
        self._check_params()
        folder = None if self.folder is None else Path(self.folder)
        if folder is None:
            self._search(X, y, sample_weight, groups, folder, started)
        else:
            with folder_lock(folder, "searching"):
                self._search(X, y, sample_weight, groups, folder, started)
        return self

    def _search(
        self, X: Any, y: Any, weights: Any, groups: Any, folder: Path | None, started: float
    ) -> None:
        seed = resolve_seed(self)
        estimator = clone(self.estimator)
        if estimator.random_state is None:
            estimator.set_params(random_state=seed)
        space = resolve_space(estimator, self.space)
        self.metric_name_, self.scorer_ = make_search_scorer(estimator, self.scoring)
        data, digest, types = self._check_data(X, y, weights, groups, seed)
        # All splits are read with the types of the whole table.
        typed = clone(estimator).set_params(column_types=types)
        searcher = make_searcher(
            self.searcher,
            space,
            n_trials=self.n_trials,
            seed=seed,
            rows=min(len(train) for train, _ in data.splits),
        )
        settings = {
            "estimator": repr(estimator),
            "space": {name: repr(each) for name, each in space.items()},
            "searcher": self.searcher,
            "candidates": self.n_trials if self.searcher == "halving" else None,
            "scoring": self.metric_name_,
            "splits": str(self.cv),
            "pruning": bool(self.pruning),
            "seed": seed,
            "table": digest,
        }
        log = TrialLog(folder, settings)
        spent = sum(sum(trial.seconds) for trial in log.trials)
        limit = math.inf if self.max_seconds is None else float(self.max_seconds)
        deadline = started + limit - spent
        progress = SearchProgress(
            self.metric_name_, self.n_trials, len(log.trials), verbose=self.verbose
        )
        while (proposal := searcher.propose(log.trials)) is not None:
            end = deadline - self._refit_seconds(log.trials, data) if log.trials else math.inf
            if time.monotonic() >= end:
                break
            try:
                trial = evaluate_trial(
                    typed,
                    proposal,
                    data,
                    earlier=log.trials,
                    scorer=self.scorer_,
                    pruning=bool(self.pruning),
                    deadline=end,
                )
            except OutOfTime:
                break
            log.append(trial)
            progress.show(trial, best_trial(log.trials))
        self._set_results(log.trials, len(data.splits))
        if self.refit:
            begun = time.monotonic()
            self.best_estimator_ = clone(estimator).set_params(**self.best_params_)
            kwargs = {} if data.weights is None else {"sample_weight": data.weights}
            self.best_estimator_.fit(X, y, **kwargs)
            self.refit_time_ = time.monotonic() - begun

    def _set_results(self, trials: list[Trial], splits: int) -> None:
        best = best_trial(trials)
        assert best is not None  # the first trial is finished, or raises
        self.trials_, self.n_splits_ = list(trials), splits
        self.cv_results_ = make_cv_results(trials, splits)
        self.best_index_, self.best_params_ = best.number, dict(best.params)
        self.best_score_ = best.score
        self.multimetric_ = False

    def _refit_seconds(self, trials: list[Trial], data: SearchData) -> float:
        """Estimate the time to refit the best trial, which costs as much as its rows."""
        best = best_trial(trials)
        if best is None:
            return 0.0
        train_rows = best.fraction * np.mean([len(train) for train, _ in data.splits])
        return float(np.mean(best.seconds) * len(data.y) / train_rows)

    def _check_data(
        self, X: Any, y: Any, weights: Any, groups: Any, seed: int
    ) -> tuple[SearchData, str, dict[int, str]]:
        """Return the data, its digest and the type of each column by position."""
        import pandas

        estimator = clone(self.estimator)
        X = to_pandas(X) if is_frame(X) else X
        checked = estimator._check_table(X, reset=True)
        check_consistent_length(X, y)
        y = np.asarray(y)
        if weights is not None:
            weights = _check_sample_weight(weights, np.empty((len(y), 1)), dtype=np.float64)
        columns = read_columns(checked, estimator.column_types)
        reject_empty_columns(columns, estimator.column_types)
        classify = is_classifier(estimator)
        try:
            cv = check_cv(self.cv, y if classify else None, classifier=classify)
            if isinstance(self.cv, int) and hasattr(cv, "shuffle"):
                cv.shuffle, cv.random_state = True, seed  # tables are often sorted
            splits = list(cv.split(np.zeros((len(y), 1)), y, groups))
        except ValueError as error:
            raise UserError(f"cv: {' '.join(str(error).split())}") from None
        target = pandas.Series(y) if y.ndim == 1 else y
        data = SearchData(checked, target, weights, splits)
        kinds = {index: column.kind for index, column in enumerate(columns)}
        return data, table_digest(columns, y, weights), kinds

    def _check_params(self) -> None:
        if not isinstance(self.estimator, TabularTransformer):
            raise UserError(
                "estimator: expected a TabularTransformerClassifier or Regressor, got "
                f"{type(self.estimator).__name__}; for pipelines use RandomizedSearchCV(pipeline, "
                "search_space(prefix='step__'))"
            )
        count = self.n_trials
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
            raise UserError(f"n_trials: expected an integer >= 1, got {count!r}")
        limit = self.max_seconds
        is_number = isinstance(limit, Real) and not isinstance(limit, bool)
        if limit is not None and not (is_number and float(limit) > 0):
            raise UserError(f"max_seconds: expected a positive number, got {limit!r}")
        if self.folder is not None and not isinstance(self.random_state, int | np.integer):
            raise UserError(
                "random_state: expected an integer with folder, because a resumed search repeats "
                f"its draws, got {self.random_state!r}"
            )

    # Delegation to the best estimator

    @property
    def classes_(self) -> np.ndarray:
        """Class labels of the best estimator."""
        return np.asarray(self._best().classes_)

    @property
    def n_features_in_(self) -> int:
        """Number of columns seen during fit."""
        if not hasattr(self, "best_estimator_"):
            raise AttributeError("n_features_in_: expected a fitted search with refit=True")
        return int(self.best_estimator_.n_features_in_)

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Column names seen during fit, if the table has any."""
        return np.asarray(self._best().feature_names_in_, dtype=object)

    def predict(self, X: Any) -> np.ndarray:
        """Return the predictions of the best estimator."""
        return np.asarray(self._best().predict(X))

    @available_if(_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the class probabilities of the best estimator."""
        return np.asarray(self._best().predict_proba(X))

    @available_if(_has("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the class probabilities of the best estimator."""
        return np.asarray(self._best().predict_log_proba(X))

    def transform(self, X: Any) -> np.ndarray:
        """Return the row embeddings of the best estimator."""
        return np.asarray(self._best().transform(X))

    def score(self, X: Any, y: Any) -> float:
        """Return the score of the best estimator with the metric of the search."""
        return float(self.scorer_(self._best(), X, y))

    def _best(self) -> Any:
        check_is_fitted(self, "cv_results_")
        if not hasattr(self, "best_estimator_"):
            raise AttributeError("expected a search with refit=True, got refit=False")
        return self.best_estimator_

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "cv_results_")

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type, tags.classifier_tags = inner.estimator_type, inner.classifier_tags
        tags.regressor_tags, tags.input_tags = inner.regressor_tags, inner.input_tags
        tags.target_tags = inner.target_tags
        return tags
