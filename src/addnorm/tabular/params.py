"""What an estimator's parameters mean: checked when it is fitted, not before."""

import math
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import MODELS, TableConfig
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.training.loop import TrainingConfig
from addnorm.tabular.training.row_groups import UniqueRows, split_holdout
from addnorm.train.device import count_cores, pick_device
from addnorm.train.schedules.base import recommended_schedule

PRECISIONS = ("float32", "bfloat16")
MIN_HOLDOUT_ROWS = 300
"""Different rows from which on a part is held out by itself."""
CONFIG_PARAMS = (
    *("wiring", "norm", "numeric", "dim", "depth", "heads", "ffn_dim", "activation"),
    *("dropout", "attention_dropout", "activation_dropout"),
)
"""Parameters that are fields of a `TableConfig`; None for what the model has by itself."""


def auto_batch_size(rows: int) -> int:
    """Rows of a batch: about thirty batches an epoch, 32 rows at least and 256 at most.

    >>> batch_size(100), batch_size(4000), batch_size(50_000)
    (32, 128, 256)
    """
    return min(256, max(32, 2 ** round(math.log2(max(1, rows) / 30))))


def num_epochs(rows: int, batch: int, *, max_epochs: int) -> int:
    """Epochs that make about 2000 steps, 12 at least and so many at most.

    >>> passes(700, 32, most=20), passes(15_000, 256, most=35), passes(1_000_000, 256, most=20)
    (20, 34, 12)
    """
    return min(max_epochs, max(12, round(2000 / math.ceil(rows / batch))))


def resolve_seed(estimator: Any) -> int:
    """The seed of a fit."""
    return int(check_random_state(estimator.random_state).randint(2**31 - 1))


def resolve_threads(estimator: Any) -> int | None:
    """Threads that were asked for; None for as many as torch has."""
    if estimator.n_jobs is None:
        return None
    if not _is_integer(estimator.n_jobs) or estimator.n_jobs == 0:
        raise UserError(
            f"n_jobs is a number of threads, -1 for all, -2 for all but one, got {estimator.n_jobs!r}"
        )
    return (
        int(estimator.n_jobs)
        if estimator.n_jobs > 0
        else max(1, count_cores() + 1 + int(estimator.n_jobs))
    )


def resolve_device(estimator: Any) -> torch.device:
    """Where to train."""
    if not isinstance(estimator.device, str):
        raise UserError(f"device is a name such as 'cpu' or 'auto', got {estimator.device!r}")
    return pick_device(estimator.device)


def model_config(estimator: Any, encoder: TableEncoder, outputs: int) -> TableConfig:
    """The config of the model that was asked for."""
    if not isinstance(estimator.model, str) or estimator.model not in MODELS:
        raise UserError(unknown_name_message("model", str(estimator.model), MODELS))
    kind = MODELS[estimator.model]
    told = {name: to_python_scalar(getattr(estimator, name)) for name in CONFIG_PARAMS}
    told = {name: value for name, value in told.items() if value is not None}
    for name in kind.unused_fields:
        if name in told:
            raise UserError(
                f"{name}={told[name]!r} means nothing to {estimator.model}; leave {name} out"
            )
    usual = {
        name: value for name, value in estimator._usual.items() if name not in kind.unused_fields
    }
    fields = usual | kind.defaults | told
    return TableConfig.from_kwargs(
        model=estimator.model, outputs=outputs, **fields, **encoder.layout
    )


def holdout_fractions(estimator: Any, y: np.ndarray, rows: UniqueRows) -> np.ndarray:
    """How much of each row is held out to find the best epoch, from 0 to 1."""
    wanted = to_python_scalar(estimator.early_stopping)
    if not (isinstance(wanted, bool) or wanted == "auto"):
        raise UserError(f"early_stopping is True, False or 'auto', got {wanted!r}")
    _check_fraction(
        estimator, "validation_fraction", 0 < _to_float(estimator.validation_fraction) < 1
    )
    if wanted is False or (wanted == "auto" and rows.num_groups < MIN_HOLDOUT_ROWS):
        return np.zeros(len(y))
    held = split_holdout(rows, estimator._groups(y), estimator.validation_fraction)
    if wanted is True and not held.any():
        raise UserError(
            f"{rows.num_groups} different rows are too few to hold out "
            f"{estimator.validation_fraction} of them; say early_stopping=False"
        )
    return held


def training_config(
    estimator: Any, rows: int, *, wiring: str, seed: int, epochs: int | None = None
) -> TrainingConfig:
    """How a fit of a model with that wiring to so many rows goes. epochs: else `max_epochs`"""
    size = estimator.batch_size
    size = (
        auto_batch_size(rows) if size == "auto" else _check_count("batch_size is 'auto' or", size)
    )
    if epochs is not None:
        epochs = _check_count("epochs is None or", epochs)
    elif estimator.max_epochs == "auto":
        epochs = num_epochs(rows, size, max_epochs=estimator._most_passes)
    else:
        epochs = _check_count("max_epochs is 'auto' or", estimator.max_epochs)
    patience = _check_count("patience is", estimator.patience)
    if str(estimator.precision) not in PRECISIONS:
        raise UserError(unknown_name_message("precision", str(estimator.precision), PRECISIONS))
    if estimator.max_seconds is not None and not _to_float(estimator.max_seconds) > 0:
        raise UserError(f"max_seconds is a positive number, got {estimator.max_seconds!r}")
    _check_fraction(estimator, "average", 0 <= _to_float(estimator.average) < 1)
    for name in ("optimizer", "schedule"):
        told = getattr(estimator, name)
        if not isinstance(told, str) and not (told is None and name == "schedule"):
            raise UserError(f"{name} is a call string, got {told!r}")
    for name in ("lr", "weight_decay"):
        if not 0 <= _to_float(getattr(estimator, name)) < math.inf:
            raise UserError(f"{name} must be a positive number, got {getattr(estimator, name)!r}")
    return TrainingConfig(
        optimizer=estimator.optimizer,
        lr=float(estimator.lr),
        weight_decay=float(estimator.weight_decay),
        schedule=estimator.schedule or recommended_schedule(wiring),
        batch_size=size,
        max_epochs=epochs,
        patience=patience,
        average=float(estimator.average),
        max_seconds=estimator.max_seconds,
        precision=estimator.precision,
        seed=derive_seed(seed, "training"),
    )


def to_python_scalar(value: Any) -> Any:
    """A number of numpy as one of Python; all else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _check_count(description: str, value: Any) -> int:
    if not _is_integer(value) or value < 1:
        raise UserError(f"{description} a whole number from 1, got {to_python_scalar(value)!r}")
    return int(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _to_float(value: Any) -> float:
    """NaN where it is none, which no bound admits."""
    real = isinstance(value, int | float | np.integer | np.floating)
    return float(value) if real and not isinstance(value, bool) else math.nan


def _check_fraction(estimator: Any, name: str, is_valid: bool) -> None:
    if not is_valid:
        raise UserError(f"{name} is a share between 0 and 1, got {getattr(estimator, name)!r}")
