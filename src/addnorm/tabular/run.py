"""A fit as a folder: the estimator, what was measured, and what it was measured against."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from sklearn.base import ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import (
    accuracy_score,
    log_loss,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)
from sklearn.model_selection import train_test_split

from addnorm.core.errors import UserError, unknown
from addnorm.core.files import replacing
from addnorm.core.rows import write_rows
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor, load
from addnorm.tabular.calibration import Reliability
from addnorm.tabular.columns import read_column

CONFIG, ROWS = "config.yaml", "rows.jsonl"
TASKS = {"classify": TabularTransformerClassifier, "regress": TabularTransformerRegressor}
CLASSES = 20
"""Different whole numbers up to which a target is taken for classes."""
BINS = 255
"""Categories that gradient boosting tells apart."""

Estimator = TabularTransformerClassifier | TabularTransformerRegressor


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """What was asked of a fit."""

    table: str
    target: str
    task: str
    holdout: float
    seed: int
    params: dict[str, Any]


@dataclass(frozen=True)
class Fitted:
    """What came of it."""

    config: FitConfig
    estimator: Estimator
    scores: dict[str, dict[str, float]]
    """By name of the model, then of the measure, on the rows held out; empty without any."""
    reliability: Reliability | None
    tested: int
    trained: int


def task_of(y: Any) -> str:
    """`classify` for texts, truths and a few whole numbers, else `regress`."""
    column = read_column("target", y)
    if column.kind not in ("numeric", "datetime"):
        return "classify"
    values = column.values[~np.isnan(column.values)]
    whole = bool((values == np.round(values)).all())
    return "classify" if whole and len(np.unique(values)) <= CLASSES else "regress"


def split_target(frame: Any, target: str) -> tuple[Any, Any]:
    """The columns to learn from, and the target, of a frame."""
    names = [str(name) for name in frame.columns]
    if target not in names:
        raise UserError(unknown("target column", target, names))
    if len(names) == 1:
        raise UserError(f"{target!r} is the only column; wanted others to predict it from")
    y = frame[target]
    holes = int(y.isna().sum())
    if holes:
        raise UserError(
            f"Input y contains NaN: the target {target!r} is absent in {holes} of {len(y)} rows; "
            "leave those rows out"
        )
    return frame.drop(columns=target), y


def fit_run(frame: Any, config: FitConfig, *, verbose: bool = False) -> Fitted:
    """Fit to a frame, hold out a part, and measure gradient boosting beside it."""
    X, y = split_target(frame, config.target)
    if config.task not in TASKS:
        raise UserError(unknown("task", config.task, TASKS))
    classify = config.task == "classify"
    estimator = TASKS[config.task](random_state=config.seed, verbose=verbose)
    known = estimator.get_params()
    for name in config.params:
        if name not in known:
            raise UserError(unknown("parameter", name, known))
    estimator.set_params(**config.params)
    if not 0 <= config.holdout < 1:
        raise UserError(f"holdout is a share from 0 to below 1, got {config.holdout}")
    tested: tuple[Any, Any] | None = None
    try:
        if config.holdout:
            groups = y if classify and y.value_counts().min() > 1 else None
            X, X_test, y, y_test = train_test_split(
                X, y, test_size=config.holdout, random_state=config.seed, stratify=groups
            )
            tested = X_test, y_test
        started = time.monotonic()
        estimator.fit(X, y)
        seconds = time.monotonic() - started
    except UserError:
        raise
    except ValueError as problem:  # in scikit-learn's words
        raise UserError(" ".join(str(problem).split())) from None
    if tested is None:
        return Fitted(config, estimator, {}, None, 0, len(X))
    scores = {"addnorm": measured(estimator, *tested) | {"seconds": seconds}}
    scores["gradient boosting"] = boosted(X, y, *tested, classify=classify, seed=config.seed)
    reliability = estimator.reliability(*tested) if classify else None
    return Fitted(config, estimator, scores, reliability, len(tested[0]), len(X))


def measured(model: Any, X: Any, y: Any) -> dict[str, float]:
    """Scores of a fitted model on rows it has not seen."""
    if not isinstance(model, ClassifierMixin):
        said = model.predict(X)
        return {
            "rmse": float(root_mean_squared_error(y, said)),
            "mae": float(mean_absolute_error(y, said)),
            "r2": float(r2_score(y, said)) if len(y) > 1 else np.nan,
        }
    said, y = model.predict_proba(X), np.asarray(y)
    known = np.isin(y, model.classes_)
    scores = {"accuracy": float(accuracy_score(y, model.classes_[said.argmax(1)]))}
    scores["log loss"] = float(log_loss(y[known], said[known], labels=model.classes_))
    if len(np.unique(y[known])) == len(model.classes_):
        score = said[known][:, 1] if len(model.classes_) == 2 else said[known]
        scores["auc"] = float(roc_auc_score(y[known], score, multi_class="ovr"))
    return scores


def boosted(
    X: Any, y: Any, X_test: Any, y_test: Any, *, classify: bool, seed: int
) -> dict[str, float]:
    """Scores of scikit-learn's gradient boosting with its defaults on the same rows."""
    table, marks = _for_trees(X, X)
    kind = HistGradientBoostingClassifier if classify else HistGradientBoostingRegressor
    started = time.monotonic()
    model = kind(categorical_features=marks, random_state=seed).fit(table, y)
    seconds = time.monotonic() - started
    return measured(model, _for_trees(X_test, X)[0], y_test) | {"seconds": seconds}


def _for_trees(X: Any, known: Any) -> tuple[np.ndarray, list[bool]]:
    """Columns as numbers; texts as codes of the most frequent."""
    columns, marks = [], []
    for name in X.columns:
        model = read_column(str(name), known[name])
        column = read_column(str(name), X[name], model.kind)
        if column.values.dtype == np.float64:
            columns.append(column.values)
            marks.append(False)
            continue
        met = Counter(text for text in model.values if text is not None)
        often = sorted(met, key=lambda text: (-met[text], text))[:BINS]
        codes = {text: float(place) for place, text in enumerate(often)}
        columns.append(np.array([codes.get(text, np.nan) for text in column.values]))
        marks.append(True)
    return np.stack(columns, 1), marks


def save_run(fitted: Fitted, folder: str | Path) -> None:
    """Write the estimator, the config and what was measured."""
    folder = Path(folder)
    fitted.estimator.save(folder)
    with replacing(folder / CONFIG) as name:
        name.write_text(yaml.safe_dump(asdict(fitted.config), sort_keys=False), encoding="utf-8")
    rows: list[Mapping[str, Any]] = [
        {"name": "loss", "split": split, "step": int(row["epoch"]), "value": row[split]}
        for row in fitted.estimator.history_
        for split in ("train", "valid")
        if split in row
    ]
    rows += [
        {"name": measure, "model": model, "split": "test", "value": value}
        for model, scores in fitted.scores.items()
        for measure, value in scores.items()
    ]
    write_rows(folder / ROWS, rows)


def open_run(folder: str | Path) -> tuple[FitConfig, Estimator]:
    """The config and the estimator of a run."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise UserError(f"no fit at {folder}: wanted a folder that `addnorm fit` made")
    try:
        config = FitConfig(**yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8")))
    except (yaml.YAMLError, TypeError) as problem:
        told = " ".join(str(problem).split())
        raise UserError(f"{folder / CONFIG} is not the config of a fit ({told})") from None
    return config, load(folder)


def matched(frame: Any, estimator: Estimator, target: str) -> tuple[Any, list[str]]:
    """The columns that the estimator knows, in its order, and the names of those it does not.

    A frame that lacks any is refused with their names; the target is no column of strangers.
    """
    wanted = [str(name) for name in estimator.feature_names_in_]
    there = [str(name) for name in frame.columns]
    missing = [name for name in wanted if name not in there]
    if missing:
        raise UserError(
            f"The table lacks columns seen at fit time: {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, there[:20]))}{', ...' if len(there) > 20 else ''}"
        )
    return frame[wanted], [name for name in there if name not in wanted and name != target]
