"""Run folder of `addnorm fit`: the estimator, its test scores and a gradient-boosting baseline.

The folder contains `config.yaml` (`FitConfig`), `rows.jsonl` (losses and scores) and the files of
`save_estimator`.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.files import file_checksum, read_yaml, write_yaml
from addnorm.core.locks import folder_lock
from addnorm.core.parsing import parse_yaml
from addnorm.core.rows import write_rows
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor, load
from addnorm.tabular.fit_scores import gradient_boosting_scores, score_estimator
from addnorm.tabular.inspection.calibration import Reliability
from addnorm.tabular.io.store import FILE as ESTIMATOR_FILE
from addnorm.tabular.io.store import save_estimator
from addnorm.tabular.task_setup import infer_column_types, split_rows, split_target

CONFIG, ROWS = "config.yaml", "rows.jsonl"
SAMPLE_ROWS = 100
"""Test rows that the report explains predictions with."""
TASKS: dict[str, Any] = {
    "classify": TabularTransformerClassifier,
    "regress": TabularTransformerRegressor,
}

Estimator = TabularTransformerClassifier | TabularTransformerRegressor


class FitConfig(BaseModel):
    """Settings of a fit, stored in the run folder."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    table: str
    """Path of the table."""
    target: str
    """Name of the target column."""
    task: str
    """`classify` or `regress`."""
    holdout: float
    """Fraction of the rows held out as test rows."""
    seed: int
    """Seed of the split and of the estimator."""
    params: dict[str, Any]
    """Parameters of the estimator."""
    types: dict[str, str] = {}
    """Arrow types of the columns of a CSV file, by name; empty for typed formats."""
    drop: tuple[str, ...] = ()
    """Columns that are left out."""
    ids: tuple[str, ...] = ()
    """Columns that identify rows: left out of the fit, and copied to predictions."""


@dataclass(frozen=True)
class FitResult:
    """Fitted estimator and its scores on the test rows."""

    config: FitConfig
    estimator: Estimator
    trained: int
    """Number of training rows."""
    tested: int = 0
    """Number of test rows."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """Test scores by model, then by metric; empty without test rows."""
    reliability: Reliability | None = None
    """Calibration on the test rows, for classifiers."""
    note: str = ""
    """Reason for missing gradient-boosting scores, or empty."""
    sample: Any = None
    """Frame with a few of the test rows, to explain predictions with."""

    def __str__(self) -> str:
        lines = [
            f"{self.config.task} {self.config.target!r}: {self.trained:,} training rows, "
            f"{self.tested:,} test rows"
        ]
        for model, scores in self.scores.items():
            values = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
            lines.append(f"  {model}: {values}")
        return "\n".join([*lines, *([f"  {self.note}"] if self.note else [])])


def fit_run(
    frame: Any, config: FitConfig, folder: str | Path, *, verbose: bool = False
) -> FitResult:
    """Fit an estimator to a frame, write its run folder, and score it on held-out test rows.

    Gradient boosting with default settings is fitted to the same rows for comparison.
    """
    with folder_lock(Path(folder), "fitting"):  # fails before training if it cannot be written
        return _fit_run(frame, config, folder, verbose=verbose)


def build_estimator(config: FitConfig, *, verbose: bool = False) -> Estimator:
    """Return the estimator of a config, not fitted.

    Raises:
        UserError: an unknown task or parameter, or a fraction of test rows outside [0, 1)
    """
    if config.task not in TASKS:
        raise UserError(unknown_name_message("task", config.task, TASKS))
    estimator: Estimator = TASKS[config.task](random_state=config.seed, verbose=verbose)
    known = estimator.get_params()
    for name in config.params:
        if name not in known:
            raise UserError(unknown_name_message("parameter", name, known))
    estimator.set_params(**config.params)
    if not 0 <= config.holdout < 1:
        raise UserError(f"--test-size: expected a fraction in [0, 1), got {config.holdout}")
    return estimator


def _fit_run(frame: Any, config: FitConfig, folder: str | Path, *, verbose: bool) -> FitResult:
    X, y = split_target(frame, config.target)
    X = drop_columns(X, (*config.drop, *config.ids))
    classify = config.task == "classify"
    estimator = build_estimator(config, verbose=verbose)
    X_test = y_test = None
    types = infer_column_types(X, config.params.get("column_types"))
    estimator.set_params(column_types=types)
    try:
        if config.holdout:
            train, test = split_rows(y, config.holdout, classify=classify, seed=config.seed)
            (X_test, y_test), (X, y) = ((X.iloc[rows], y.iloc[rows]) for rows in (test, train))
        started = time.monotonic()
        estimator.fit(X, y)
        seconds = time.monotonic() - started
    except UserError:
        raise
    except ValueError as error:  # raised by scikit-learn, possibly over several lines
        raise UserError(" ".join(str(error).split())) from None
    result = FitResult(config, estimator, len(X))
    save_run(result, folder)  # keep the estimator even if scoring fails
    if X_test is None:
        return result
    scores = {"addnorm": score_estimator(estimator, X_test, y_test) | {"seconds": seconds}}
    note = ""
    try:
        scores["gradient boosting"] = gradient_boosting_scores(
            X,
            y,
            X_test,
            y_test,
            types=types,
            classify=classify,
            seed=config.seed,
            quantiles=None if classify else estimator.quantiles,
        )
    except ValueError as error:  # for example a class with a single row
        note = f"Gradient boosting could not be fitted: {' '.join(str(error).split())}"
    reliability = estimator.reliability(X_test, y_test) if classify else None
    result = replace(
        result,
        tested=len(X_test),
        scores=scores,
        reliability=reliability,
        note=note,
        sample=X_test[:SAMPLE_ROWS],
    )
    save_run(result, folder)
    return result


def save_run(result: FitResult, folder: str | Path) -> None:
    """Write the estimator, the config, the losses and the test scores to a run folder."""
    folder = Path(folder)
    text = yaml.safe_dump(result.config.model_dump(), sort_keys=False, allow_unicode=True)
    write_yaml(folder / CONFIG, text)
    rows: list[Mapping[str, Any]] = [
        {"name": "loss", "split": split, "step": int(row["epoch"]), "value": row[split]}
        for row in result.estimator.history_
        for split in ("train", "valid")
        if split in row
    ]
    rows += [
        {"name": metric, "model": model, "split": "test", "value": value}
        for model, scores in result.scores.items()
        for metric, value in scores.items()
    ]
    write_rows(folder / ROWS, rows)
    # Last: it marks the run as complete, and stores the checksum of the rows.
    save_estimator(result.estimator, folder, files={ROWS: file_checksum(folder / ROWS)})


def parse_param(text: str) -> Any:
    """Parse the VALUE of a KEY=VALUE argument as YAML, with 1e-3 as a number.

    >>> parse_param("1e-3"), parse_param("null"), parse_param("b2t")
    (0.001, None, 'b2t')
    """
    try:
        value = parse_yaml(text)
    except ValueError:
        raise UserError(
            f"expected a value such as 3, 0.1, true, null or a name, got {text!r}"
        ) from None
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def format_param(value: Any) -> str:
    """Return the text that `parse_param` parses as this value.

    >>> format_param(None), format_param("b2t"), format_param("3")
    ('null', 'b2t', '"3"')
    """
    if isinstance(value, str) and parse_param(value) == value:
        return value
    return json.dumps(value)


def open_run(folder: str | Path) -> tuple[FitConfig, Estimator]:
    """Load the config and the estimator of a run folder."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise UserError(f"expected a folder written by `addnorm fit`, got {folder}")
    try:
        values = read_yaml(folder / CONFIG)
        if isinstance(values, dict) and "table" not in values and "task" in values:
            raise UserError(
                f"expected a run of `addnorm fit`, got {folder}, a run of task {values['task']!r}"
            )
        config = FitConfig(**values)
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{folder / CONFIG}: expected the config of a fit ({reason})") from None
    return config, load(folder)


def drop_columns(X: Any, names: Sequence[str]) -> Any:
    """Return a frame without these columns.

    Raises:
        UserError: if a column does not exist, or none would remain
    """
    for name in names:
        if name not in X.columns:
            raise UserError(unknown_name_message("column", name, list(X.columns)))
    if len(set(names)) >= X.shape[1]:
        raise UserError(
            f"--drop and --id: expected to leave at least one of {X.shape[1]} columns, got all"
        )
    return X.drop(columns=list(dict.fromkeys(names)))


def prediction_names(target: str, estimator: Any) -> list[str]:
    """Return the names of the columns of predictions: the target, or one for each quantile."""
    quantiles = getattr(estimator, "quantiles", None)
    return [target] if quantiles is None else [f"{target} {each:g}" for each in quantiles]


def check_run_folder(folder: Path, *, force: bool) -> None:
    """Raise `UserError` if a folder contains a run that would be replaced.

    A folder without an estimator, such as that of a fit that was interrupted, may be written to.
    """
    if not force and (folder / ESTIMATOR_FILE).exists():
        raise UserError(
            f"-o: expected a new folder, got {folder}, which contains a fit; choose another, or "
            "replace it with --force"
        )


def align_columns(frame: Any, estimator: Estimator, target: str) -> tuple[Any, list[str]]:
    """Return the columns that the estimator was fitted to, in its order, and the unused names.

    The target column does not count as unused.

    Raises:
        UserError: if a column of the fit is missing
    """
    expected = [str(name) for name in estimator.feature_names_in_]
    names = [str(name) for name in frame.columns]
    missing = [name for name in expected if name not in names]
    if missing:
        raise UserError(
            f"the table lacks columns of the fit: {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, names[:20]))}{', ...' if len(names) > 20 else ''}"
        )
    return frame[expected], [name for name in names if name not in expected and name != target]
