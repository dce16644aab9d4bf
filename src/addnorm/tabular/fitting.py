"""Training of the networks of one fit: one, one for each fold, or one more on all rows."""

import math
import time
from contextlib import closing
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import TableModel
from addnorm.tabular.callbacks import make_fit_callback
from addnorm.tabular.dataset import FitData
from addnorm.tabular.inspection.importance import check_importance
from addnorm.tabular.params import (
    make_model_config,
    make_training_config,
    resolve_device,
    resolve_model,
    resolve_threads,
)
from addnorm.tabular.training.loop import History, build_model, fit_model
from addnorm.tabular.training.prediction import predict
from addnorm.tabular.training.torch_context import torch_context

MIN_SECONDS = 1e-3
"""Time that is left for training at least, so that a late fit still makes one step."""


def time_limit(estimator: Any) -> float:
    """Return `max_seconds`, or infinity without a limit."""
    limit = estimator.max_seconds
    if limit is None:
        return math.inf
    if not isinstance(limit, Real) or isinstance(limit, bool) or not float(limit) > 0:
        raise UserError(f"max_seconds: expected a positive number, got {limit!r}")
    return float(limit)


def part_of_time(deadline: float, fraction: float) -> float:
    """Return the time at which a fraction of the time until the deadline has passed."""
    now = time.monotonic()
    return deadline if math.isinf(deadline) else now + fraction * (deadline - now)


def check_fit_params(estimator: Any, *, has_validation_rows: bool) -> None:
    """Raise `UserError` for parameters that exclude each other."""
    check_importance(estimator.importance, resolve_model(estimator))
    explicit = has_validation_rows or not (
        estimator.validation_split is None or isinstance(estimator.validation_split, float)
    )
    if explicit and estimator.early_stopping is False:
        raise UserError(
            "early_stopping: expected True or 'auto' with validation rows, got False; leave the "
            "validation rows out"
        )
    if estimator.bagging is not None:
        for name in ("warm_start", "refit"):
            if getattr(estimator, name):
                raise UserError(f"{name}: expected False with bagging, got True")
        if has_validation_rows:
            raise UserError("X_val: expected None with bagging, which validates on its folds")
    if estimator.refit and has_validation_rows:
        raise UserError(
            "refit: expected False with X_val, got True; append the validation rows to X and pass "
            "their indices as validation_split"
        )


def train_networks(
    estimator: Any, data: FitData, *, seed: int, deadline: float, previous: TableModel | None
) -> tuple[list[TableModel], History]:
    """Train a network for each fold; return them and the history of all.

    Args:
        estimator: supplies the parameters
        data: encoded rows
        seed: seed of the fit
        deadline: time of `time.monotonic` at which training ends; infinite without a limit
        previous: network to continue from; a new one is built if None
    """
    device = resolve_device(estimator)
    config = make_model_config(estimator, data.encoder, data.target.outputs)
    modules: list[TableModel] = []
    history: History = []
    for number, fold in enumerate(data.folds):
        fold_seed = seed if not number else derive_seed(seed, "fold", number)
        left = (deadline - time.monotonic()) / (len(data.folds) - number)
        with (
            torch_context(
                threads=resolve_threads(estimator),
                seed=derive_seed(fold_seed, "fit"),
                device=device,
            ),
            closing(
                make_fit_callback(
                    verbose=estimator.verbose,
                    max_seconds=_finite(left),
                    monitor=getattr(estimator, "_epoch_monitor", None),
                )
            ) as callback,
        ):
            module = previous
            if module is None:
                module = build_model(
                    config,
                    fold.train,
                    target=data.target,
                    seed=fold_seed,
                    device=device,
                    pretrained=getattr(estimator, "pretrained_", None),
                )
            left = (deadline - time.monotonic()) / (len(data.folds) - number)
            training = make_training_config(
                estimator, len(fold.train.weights), model=config, seed=fold_seed
            )
            rows = fit_model(
                module.float().to(device),
                fold.train.to(device),
                None if fold.valid is None else fold.valid.to(device),
                target=data.target,
                config=replace(training, max_seconds=_finite(left)),
                reference=data.reference.to(device),
                callback=callback,
            )
        modules.append(module)
        history += [row | {"fold": number} for row in rows] if len(data.folds) > 1 else rows
    return modules, history


def out_of_fold_outputs(modules: list[TableModel], data: FitData) -> np.ndarray:
    """Return the outputs for each row by the network that was not trained on it; else NaN."""
    rows = int(data.inverse.max()) + 1
    outputs = np.full((rows, data.target.outputs), np.nan)
    for module, fold in zip(modules, data.folds, strict=True):
        if fold.valid is not None:
            predicted = predict(module, fold.valid.cells, data.reference)
            outputs[fold.valid_index] = predicted.double().cpu().numpy()
    return outputs


def best_epoch(history: History) -> int:
    """Return the epoch with the lowest validation loss."""
    return int(min(history, key=lambda row: row["valid"])["epoch"])


def _finite(seconds: float) -> float | None:
    return None if math.isinf(seconds) else max(seconds, MIN_SECONDS)
