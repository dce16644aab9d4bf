"""What an estimator's parameters mean: checked when it is fitted, not before."""

import math
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from addnorm.core.errors import UserError, unknown
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import MODELS, TableConfig
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.training.loop import Training
from addnorm.tabular.training.row_groups import RowSet, split
from addnorm.train.device import cores, pick_device
from addnorm.train.schedules.base import recommended

PRECISIONS = ("float32", "bfloat16")
ENOUGH = 300
"""Different rows from which on a part is held out by itself."""
OWN = (
    *("wiring", "norm", "numeric", "dim", "depth", "heads", "ffn_dim", "activation"),
    *("dropout", "attention_dropout", "activation_dropout"),
)
"""Parameters that are fields of a `TableConfig`; None for what the model has by itself."""


def batch_size(rows: int) -> int:
    """Rows of a batch: about thirty batches an epoch, 32 rows at least and 256 at most.

    >>> batch_size(100), batch_size(4000), batch_size(50_000)
    (32, 128, 256)
    """
    return min(256, max(32, 2 ** round(math.log2(max(1, rows) / 30))))


def passes(rows: int, batch: int, *, most: int) -> int:
    """Epochs that make about 2000 steps, 12 at least and so many at most.

    >>> passes(700, 32, most=20), passes(15_000, 256, most=35), passes(1_000_000, 256, most=20)
    (20, 34, 12)
    """
    return min(most, max(12, round(2000 / math.ceil(rows / batch))))


def seed_of(chosen: Any) -> int:
    """The seed of a fit."""
    return int(check_random_state(chosen.random_state).randint(2**31 - 1))


def threads_of(chosen: Any) -> int | None:
    """Threads that were asked for; None for as many as torch has."""
    if chosen.n_jobs is None:
        return None
    if not _whole(chosen.n_jobs) or chosen.n_jobs == 0:
        raise UserError(
            f"n_jobs is a number of threads, -1 for all, -2 for all but one, got {chosen.n_jobs!r}"
        )
    return int(chosen.n_jobs) if chosen.n_jobs > 0 else max(1, cores() + 1 + int(chosen.n_jobs))


def device_of(chosen: Any) -> torch.device:
    """Where to train."""
    if not isinstance(chosen.device, str):
        raise UserError(f"device is a name such as 'cpu' or 'auto', got {chosen.device!r}")
    return pick_device(chosen.device)


def config_of(chosen: Any, encoder: TableEncoder, outputs: int) -> TableConfig:
    """The config of the model that was asked for."""
    if not isinstance(chosen.model, str) or chosen.model not in MODELS:
        raise UserError(unknown("model", str(chosen.model), MODELS))
    kind = MODELS[chosen.model]
    told = {name: plain(getattr(chosen, name)) for name in OWN}
    told = {name: value for name, value in told.items() if value is not None}
    for name in kind.unused:
        if name in told:
            raise UserError(
                f"{name}={told[name]!r} means nothing to {chosen.model}; leave {name} out"
            )
    usual = {name: value for name, value in chosen._usual.items() if name not in kind.unused}
    fields = usual | kind.usual | told
    return TableConfig.of(model=chosen.model, outputs=outputs, **fields, **encoder.layout)


def held_out(chosen: Any, y: np.ndarray, rows: RowSet) -> np.ndarray:
    """How much of each row is held out to find the best epoch, from 0 to 1."""
    wanted = plain(chosen.early_stopping)
    if not (isinstance(wanted, bool) or wanted == "auto"):
        raise UserError(f"early_stopping is True, False or 'auto', got {wanted!r}")
    _share(chosen, "validation_fraction", 0 < _number(chosen.validation_fraction) < 1)
    if wanted is False or (wanted == "auto" and rows.different < ENOUGH):
        return np.zeros(len(y))
    held = split(rows, chosen._groups(y), chosen.validation_fraction)
    if wanted is True and not held.any():
        raise UserError(
            f"{rows.different} different rows are too few to hold out "
            f"{chosen.validation_fraction} of them; say early_stopping=False"
        )
    return held


def training_of(
    chosen: Any, rows: int, *, wiring: str, seed: int, epochs: int | None = None
) -> Training:
    """How a fit of a model with that wiring to so many rows goes. epochs: else `max_epochs`"""
    size = chosen.batch_size
    size = batch_size(rows) if size == "auto" else _count("batch_size is 'auto' or", size)
    if epochs is not None:
        epochs = _count("epochs is None or", epochs)
    elif chosen.max_epochs == "auto":
        epochs = passes(rows, size, most=chosen._most_passes)
    else:
        epochs = _count("max_epochs is 'auto' or", chosen.max_epochs)
    patience = _count("patience is", chosen.patience)
    if str(chosen.precision) not in PRECISIONS:
        raise UserError(unknown("precision", str(chosen.precision), PRECISIONS))
    if chosen.max_seconds is not None and not _number(chosen.max_seconds) > 0:
        raise UserError(f"max_seconds is a positive number, got {chosen.max_seconds!r}")
    _share(chosen, "average", 0 <= _number(chosen.average) < 1)
    for name in ("optimizer", "schedule"):
        told = getattr(chosen, name)
        if not isinstance(told, str) and not (told is None and name == "schedule"):
            raise UserError(f"{name} is a call string, got {told!r}")
    for name in ("lr", "weight_decay"):
        if not 0 <= _number(getattr(chosen, name)) < math.inf:
            raise UserError(f"{name} must be a positive number, got {getattr(chosen, name)!r}")
    return Training(
        optimizer=chosen.optimizer,
        lr=float(chosen.lr),
        weight_decay=float(chosen.weight_decay),
        schedule=chosen.schedule or recommended(wiring),
        batch_size=size,
        max_epochs=epochs,
        patience=patience,
        average=float(chosen.average),
        max_seconds=chosen.max_seconds,
        precision=chosen.precision,
        seed=derive_seed(seed, "training"),
    )


def plain(value: Any) -> Any:
    """A number of numpy as one of Python; all else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _count(what: str, value: Any) -> int:
    if not _whole(value) or value < 1:
        raise UserError(f"{what} a whole number from 1, got {plain(value)!r}")
    return int(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _number(value: Any) -> float:
    """NaN where it is none, which no bound admits."""
    real = isinstance(value, int | float | np.integer | np.floating)
    return float(value) if real and not isinstance(value, bool) else math.nan


def _share(chosen: Any, name: str, right: bool) -> None:
    if not right:
        raise UserError(f"{name} is a share between 0 and 1, got {getattr(chosen, name)!r}")
