"""Fit to a table that is read in parts, with memory that does not grow with its rows.

1. One pass collects a sample of the training rows, the validation rows and the classes. The sample
   determines column types, encoding, bins and the scale of the target.
2. `parts_training.py` reads the training rows again in every epoch.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.tabular.dataset import FitData, build_fit_data
from addnorm.tabular.fitting import check_fit_params, time_limit
from addnorm.tabular.inspection.importance import MAX_ROWS, ImportancePart
from addnorm.tabular.params import (
    resolve_seed,
    resolve_threads,
)
from addnorm.tabular.streaming.partial_fit import set_classes
from addnorm.tabular.streaming.parts_training import PartsTraining, encode_target
from addnorm.tabular.streaming.table_parts import TEST, TRAIN, VALID, TableParts
from addnorm.tabular.training.torch_context import torch_context
from addnorm.tabular.validation import ValidationRows, validation_fraction

SAMPLE_ROWS = 100_000
"""Training rows that determine types, encoding and scales."""
MAX_VALID_ROWS = MAX_TEST_ROWS = 50_000
"""Largest expected number of validation rows, and of test rows."""


@dataclass
class Samples:
    """Rows of each role that one pass over a table has collected."""

    frames: dict[int, Any] = field(default_factory=dict)
    """Frame of each role, with the target."""
    classes: set[Any] = field(default_factory=set)
    training_rows: int = 0


def fit_parts(
    estimator: Any,
    path: str | Path,
    target: str,
    *,
    drop: Sequence[str] = (),
    sample_rows: int = SAMPLE_ROWS,
    test_size: float = 0.0,
) -> Any:
    """Fit an estimator to a Parquet or Arrow table that may be larger than memory.

    Args:
        estimator: unfitted `TabularTransformerClassifier` or `TabularTransformerRegressor`
        path: .parquet or .arrow file, or folder of .parquet files
        target: name of the target column
        drop: columns to leave out
        sample_rows: training rows that determine column types, encoding and scales
        test_size: fraction of the rows that is left out of the fit

    Returns:
        The frame of test rows with the target, at most about `MAX_TEST_ROWS`; None without any.
    """
    started, seed = time.monotonic(), resolve_seed(estimator)
    _check_params(estimator, sample_rows)
    check_fit_params(estimator, has_validation_rows=True)
    whole = TableParts(path)
    columns = _feature_columns(whole.names, target, drop)
    valid = min(float(validation_fraction(estimator)), MAX_VALID_ROWS / whole.num_rows)
    parts = TableParts(
        path, columns=[*columns, target], valid=valid, test=test_size, seed=seed % 2**31
    )
    samples = collect_samples(
        parts, target, sample_rows=sample_rows, classify=is_classifier(estimator)
    )
    if TRAIN not in samples.frames or VALID not in samples.frames:
        raise UserError(
            f"{path}: expected enough rows to hold out {valid:.2g} of them, got {whole.num_rows}; "
            "read the table whole"
        )
    if is_classifier(estimator):
        set_classes(estimator, np.array(sorted(samples.classes)))
    data = _build_data(estimator, samples, target, columns, seed)
    training = PartsTraining(estimator, parts, data, target, columns, seed)
    estimator.history_, module = training.run(
        samples.training_rows, deadline=started + time_limit(estimator)
    )
    estimator._set_network(data, [module])
    with torch_context(threads=resolve_threads(estimator)):
        estimator._after_fit(data, [module], np.empty(0))
    valid_rows = data.folds[0].valid
    assert valid_rows is not None
    estimator._importance_parts = [ImportancePart(module, valid_rows.subsample(MAX_ROWS), data)]
    estimator.__dict__.pop("importances_", None)
    return samples.frames.get(TEST)


def collect_samples(parts: TableParts, target: str, *, sample_rows: int, classify: bool) -> Samples:
    """Read a table once; return a sample of the training rows and all rows of the other roles."""
    import pandas

    samples, frames = Samples(), dict[int, list[Any]]()
    expected = parts.num_rows * (1 - parts.valid - parts.test)
    keep = {
        TRAIN: min(1.0, sample_rows / max(1.0, expected)),
        VALID: 1.0,
        TEST: min(1.0, MAX_TEST_ROWS / max(1.0, parts.num_rows * parts.test)),
    }
    for part in parts:
        y = part.frame[target]
        if y.isna().any():
            raise UserError(
                f"Input y contains NaN: target {target!r} is missing in some rows of {parts.path}; "
                "drop those rows"
            )
        if classify:
            samples.classes.update(y.unique().tolist())
        samples.training_rows += int((part.roles == TRAIN).sum())
        for role, fraction in keep.items():
            chosen = part.frame[(part.roles == role) & (part.draws < fraction)]
            if len(chosen):
                frames.setdefault(role, []).append(chosen)
    for role, each in frames.items():
        samples.frames[role] = pandas.concat(each, ignore_index=True)
    return samples


def _check_params(estimator: Any, sample_rows: int) -> None:
    for name in ("bagging", "refit", "warm_start"):
        if getattr(estimator, name):
            raise UserError(f"{name}: expected its default for a fit in parts")
    if estimator.validation_split is not None and not isinstance(estimator.validation_split, float):
        raise UserError("validation_split: expected a fraction or None for a fit in parts")
    if getattr(estimator, "class_weight", None) is not None:
        raise UserError("class_weight: expected None for a fit in parts")
    if not isinstance(sample_rows, int) or sample_rows < 1:
        raise UserError(f"sample_rows: expected an integer >= 1, got {sample_rows!r}")


def _feature_columns(names: Sequence[str], target: str, drop: Sequence[str]) -> list[str]:
    if target not in names:
        raise UserError(unknown_name_message("target column", target, list(names)))
    for each in drop:
        if each not in names:
            raise UserError(unknown_name_message("column", each, list(names)))
    columns = [each for each in names if each not in (target, *drop)]
    if not columns:
        raise UserError(f"expected feature columns beside the target, got only {target!r}")
    return columns


def _build_data(
    estimator: Any, samples: Samples, target: str, columns: list[str], seed: int
) -> FitData:
    """Fit the encoder and the target to the sample, and encode sample and validation rows."""
    checked = {
        role: estimator._check_input(frame[columns], frame[target], None, reset=role == TRAIN)
        for role, frame in sorted(samples.frames.items())
        if role != TEST
    }
    labels = {role: encode_target(estimator, samples.frames[role][target]) for role in checked}
    return build_fit_data(
        estimator,
        checked[TRAIN],
        labels[TRAIN],
        encoder=None,
        target=None,
        seed=seed,
        valid_rows=ValidationRows(checked[VALID], labels[VALID]),
    )
