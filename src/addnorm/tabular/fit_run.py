"""A fit as a folder: the estimator, what was measured, and what it was measured against."""

import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict
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

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.files import atomic_write, folder_lock
from addnorm.core.rows import write_rows
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor, load
from addnorm.tabular.columns.reader import empty_columns, read_column
from addnorm.tabular.inspection.calibration import Reliability
from addnorm.tabular.task_setup import infer_column_types, split_rows, split_target

CONFIG, ROWS = "config.yaml", "rows.jsonl"
TASKS = {"classify": TabularTransformerClassifier, "regress": TabularTransformerRegressor}
MAX_CATEGORIES = 255
"""Categories that gradient boosting tells apart."""

Estimator = TabularTransformerClassifier | TabularTransformerRegressor


class FitConfig(BaseModel):
    """What was asked of a fit."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    table: str
    """The file."""
    target: str
    """The column that is predicted."""
    task: str
    """classify or regress."""
    holdout: float
    """Share of the rows that is only measured."""
    seed: int
    """Of the split and the estimator."""
    params: dict[str, Any]
    """Of the estimator."""
    types: dict[str, str] = {}
    """Of the columns of a file that has none itself, as Arrow calls them."""


@dataclass(frozen=True)
class FitResult:
    """What came of it."""

    config: FitConfig
    estimator: Estimator
    trained: int
    """Rows."""
    tested: int = 0
    """Rows held out."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """By name of the model, then of the measure, on the rows held out; empty without any."""
    reliability: Reliability | None = None
    note: str = ""
    """Why gradient boosting has no scores, where it has none."""


def fit_run(
    frame: Any, config: FitConfig, folder: str | Path, *, verbose: bool = False
) -> FitResult:
    """Fit to a frame and write the folder; then measure, on a part that was held out, the estimator
    and gradient boosting.
    """
    with folder_lock(Path(folder), "fitting"):  # refused now, not after hours
        return _fit_run(frame, config, folder, verbose=verbose)


def _fit_run(frame: Any, config: FitConfig, folder: str | Path, *, verbose: bool) -> FitResult:
    X, y = split_target(frame, config.target)
    if config.task not in TASKS:
        raise UserError(unknown_name_message("task", config.task, TASKS))
    classify = config.task == "classify"
    estimator = TASKS[config.task](random_state=config.seed, verbose=verbose)
    known = estimator.get_params()
    for name in config.params:
        if name not in known:
            raise UserError(unknown_name_message("parameter", name, known))
    estimator.set_params(**config.params)
    if not 0 <= config.holdout < 1:
        raise UserError(f"holdout is a share from 0 to below 1, got {config.holdout}")
    X_test = y_test = None
    types = infer_column_types(X, config.params.get("column_types"))
    estimator.set_params(column_types=types)
    try:
        if config.holdout:
            stay, held = split_rows(y, config.holdout, classify=classify, seed=config.seed)
            (X_test, y_test), (X, y) = ((X.iloc[at], y.iloc[at]) for at in (held, stay))
        started = time.monotonic()
        estimator.fit(X, y)
        seconds = time.monotonic() - started
    except UserError:
        raise
    except ValueError as problem:  # in scikit-learn's words
        raise UserError(" ".join(str(problem).split())) from None
    fitted = FitResult(config, estimator, len(X))
    save_run(fitted, folder)  # whatever happens to what follows
    if X_test is None:
        return fitted
    scores, note = (
        {"addnorm": score_estimator(estimator, X_test, y_test) | {"seconds": seconds}},
        "",
    )
    try:
        scores["gradient boosting"] = gradient_boosting_scores(
            X, y, X_test, y_test, types=types, classify=classify, seed=config.seed
        )
    except ValueError as problem:  # a class of one row, say
        note = f"Gradient boosting could not be fitted: {' '.join(str(problem).split())}"
    reliability = estimator.reliability(X_test, y_test) if classify else None
    fitted = replace(fitted, tested=len(X_test), scores=scores, reliability=reliability, note=note)
    save_run(fitted, folder)
    return fitted


def score_estimator(model: Any, X: Any, y: Any) -> dict[str, float]:
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
    if known.any():
        scores["log loss"] = float(log_loss(y[known], said[known], labels=model.classes_))
    if len(np.unique(y[known])) == len(model.classes_):
        score = said[known][:, 1] if len(model.classes_) == 2 else said[known]
        scores["auc"] = float(roc_auc_score(y[known], score, multi_class="ovr"))
    return scores


def gradient_boosting_scores(
    X: Any,
    y: Any,
    X_test: Any,
    y_test: Any,
    *,
    types: Mapping[str, str],
    classify: bool,
    seed: int,
) -> dict[str, float]:
    """Scores of scikit-learn's gradient boosting with its defaults on the same rows."""
    table, marks = _encode_for_trees(X, X, types)
    kind = HistGradientBoostingClassifier if classify else HistGradientBoostingRegressor
    started = time.monotonic()
    model = kind(categorical_features=marks, random_state=seed).fit(table, y)
    seconds = time.monotonic() - started
    return score_estimator(model, _encode_for_trees(X_test, X, types)[0], y_test) | {
        "seconds": seconds
    }


def _encode_for_trees(
    X: Any, train_table: Any, types: Mapping[str, str]
) -> tuple[np.ndarray, list[bool]]:
    """Columns as numbers; texts as codes of the most frequent."""
    columns, marks = [], []
    for name in X.columns:
        model, column = (read_column(name, each[name], types[name]) for each in (train_table, X))
        if empty_columns([model]):
            continue  # absent from all training rows: boosting cannot find bins for nothing
        if column.values.dtype == np.float64:
            columns.append(column.values)
            marks.append(False)
            continue
        met = Counter(text for text in model.values if text is not None)
        often = sorted(met, key=lambda text: (-met[text], text))[:MAX_CATEGORIES]
        codes = {text: float(place) for place, text in enumerate(often)}
        columns.append(np.array([codes.get(text, np.nan) for text in column.values]))
        marks.append(True)
    return np.stack(columns, 1), marks


def save_run(fitted: FitResult, folder: str | Path) -> None:
    """Write the estimator, the config and what was measured."""
    folder = Path(folder)
    fitted.estimator.save(folder)
    with atomic_write(folder / CONFIG) as name:
        plain = yaml.safe_dump(fitted.config.model_dump(), sort_keys=False, allow_unicode=True)
        name.write_text(plain, encoding="utf-8")
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


def parse_param(text: str) -> Any:
    """What stands behind KEY=, as YAML reads it; 1e-3 is a number, although YAML does not think so.

    >>> value_of("1e-3"), value_of("null"), value_of("b2t")
    (0.001, None, 'b2t')
    """
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"{text!r} is no value; wanted 3, 0.1, true, null or a word") from None
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def format_param(value: Any) -> str:
    """What `value_of` reads as that value.

    >>> text_of(None), text_of("b2t"), text_of("3")
    ('null', 'b2t', '"3"')
    """
    if isinstance(value, str) and parse_param(value) == value:
        return value
    return json.dumps(value)


def open_run(folder: str | Path) -> tuple[FitConfig, Estimator]:
    """The config and the estimator of a run."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise UserError(f"no fit at {folder}: wanted a folder that `addnorm fit` made")
    try:
        config = FitConfig(**yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8")))
    except (yaml.YAMLError, TypeError, ValueError) as problem:
        told = " ".join(str(problem).split())
        raise UserError(f"{folder / CONFIG} is not the config of a fit ({told})") from None
    return config, load(folder)


def align_columns(frame: Any, estimator: Estimator, target: str) -> tuple[Any, list[str]]:
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
