"""Validation and resolution of estimator parameters.

scikit-learn requires that `__init__` only stores its arguments, so they are checked in `fit`.
"""

import math
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.utils import check_random_state

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import MODELS, TableConfig
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.training.loop import TrainingConfig
from addnorm.tabular.training.row_groups import UniqueRows, split_holdout
from addnorm.tabular.validation import validation_fraction
from addnorm.train.device import count_cores, pick_device
from addnorm.train.schedules.base import recommended_schedule

PRECISIONS = ("float32", "bfloat16")
MAX_EPOCHS = 1_000_000
"""Largest number of epochs; more are a mistake, and a fit that does not end."""
MIN_HOLDOUT_ROWS = 300
"""Distinct rows from which `early_stopping="auto"` holds out validation rows."""
MIN_HOLDOUT_MINORITY = 6
"""Expected validation rows outside the most frequent class from which it does so: the loss of fewer
is chance, and would choose the first epoch on some tables with one positive row in fifty."""
CONFIG_PARAMS = (
    *("wiring", "norm", "numeric", "dim", "depth", "heads", "ffn_dim", "activation"),
    *("dropout", "attention_dropout", "activation_dropout", "members"),
)
"""Parameters that are fields of `TableConfig`; None selects the model's own default."""
AUTO = "auto"
AUTO_MODEL = "mlp"
AUTO_DEFAULTS: dict[str, Any] = {"members": 16, "dim": 64}
"""Architecture and defaults of `model="auto"`, chosen on the tables of
`benchmarks/tabular_boosting.py`; LEDGER.md has the measurements. The hidden width of a classifier's
feed-forwards is `dim`: twice as much costs 1.5 times the time and overfits sooner. A regressor is
better with the default of "mlp", twice `dim`."""
USES_ATTENTION = "ft_transformer"
"""Model that messages propose for settings of attention."""
DEFAULT_LR, MEMBERS_LR = 1e-3, 3e-3
"""Peak learning rates, the second of "mlp" with several members."""


def choose_batch_size(rows: int) -> int:
    """Return the batch size for about 30 batches per epoch, between 32 and 256 rows.

    >>> choose_batch_size(100), choose_batch_size(4000), choose_batch_size(50_000)
    (32, 128, 256)
    """
    return min(256, max(32, 2 ** round(math.log2(max(1, rows) / 30))))


def choose_num_epochs(rows: int, batch: int, *, max_epochs: int) -> int:
    """Return the number of epochs for about 2000 steps, between 12 and `max_epochs`.

    >>> choose_num_epochs(700, 32, max_epochs=20), choose_num_epochs(1_000_000, 256, max_epochs=20)
    (20, 12)
    >>> choose_num_epochs(15_000, 256, max_epochs=35)
    34
    """
    return min(max_epochs, max(12, round(2000 / math.ceil(rows / batch))))


def resolve_seed(estimator: Any) -> int:
    """Draw the seed of a fit from `random_state`."""
    return int(check_random_state(estimator.random_state).randint(2**31 - 1))


def resolve_threads(estimator: Any) -> int | None:
    """Return the number of threads for `n_jobs`; None keeps the setting of PyTorch.

    As in joblib, -1 means all cores and -2 all cores but one.
    """
    if estimator.n_jobs is None:
        return None
    if not _is_integer(estimator.n_jobs) or estimator.n_jobs == 0:
        raise UserError(
            "n_jobs: expected a number of threads, -1 for all cores or -2 for all but one, got "
            f"{estimator.n_jobs!r}"
        )
    n_jobs = int(estimator.n_jobs)
    return n_jobs if n_jobs > 0 else max(1, count_cores() + 1 + n_jobs)


def resolve_device(estimator: Any) -> torch.device:
    """Return the device to train on."""
    if not isinstance(estimator.device, str):
        raise UserError(
            f"device: expected a name such as 'cpu' or 'auto', got {estimator.device!r}"
        )
    return pick_device(estimator.device)


def resolve_model(estimator: Any) -> str:
    """Return the name of the architecture; "auto" is the one that was best on our tables."""
    if isinstance(estimator.model, str) and estimator.model in (AUTO, *MODELS):
        return AUTO_MODEL if estimator.model == AUTO else estimator.model
    raise UserError(unknown_name_message("model", str(estimator.model), (AUTO, *MODELS)))


def make_model_config(estimator: Any, encoder: TableEncoder, outputs: int) -> TableConfig:
    """Return the model config for an estimator's parameters and the layout of its table.

    Explicit parameters override the model's defaults, which override `_default_dropout`.
    """
    name_of_model = resolve_model(estimator)
    model, is_auto = MODELS[name_of_model], estimator.model == AUTO
    params = {name: to_python_scalar(getattr(estimator, name)) for name in CONFIG_PARAMS}
    params = {name: value for name, value in params.items() if value is not None}
    for name in model.unused_fields:
        if name in params:
            other = f" or set model='{USES_ATTENTION}'" if is_auto else ""
            raise UserError(
                f"{name}: expected None because {name_of_model} does not use it, got "
                f"{params[name]!r}; leave {name} out{other}"
            )
    dropout = {
        name: value
        for name, value in estimator._default_dropout.items()
        if name not in model.unused_fields
    }
    fields: dict[str, Any] = {"model": name_of_model, "outputs": outputs, **encoder.layout}
    values = dropout | model.defaults | (AUTO_DEFAULTS if is_auto else {}) | params
    if is_auto and is_classifier(estimator):
        values.setdefault("ffn_dim", values["dim"])
    if values.get("members", 1) != 1:
        fields["member_average"] = estimator._member_average
    return TableConfig(**fields, **values)


def holdout_fractions(estimator: Any, y: np.ndarray, rows: UniqueRows) -> np.ndarray:
    """Return the fraction of each row that is held out for early stopping, from 0 to 1."""
    early_stopping = to_python_scalar(estimator.early_stopping)
    if not (isinstance(early_stopping, bool) or early_stopping == "auto"):
        raise UserError(f"early_stopping: expected True, False or 'auto', got {early_stopping!r}")
    fraction = validation_fraction(estimator)
    name = "validation_fraction" if estimator.validation_split is None else "validation_split"
    _check_fraction(estimator, name, 0 < _to_float(fraction) < 1)
    strata = estimator._strata(y)
    counts = np.bincount(strata, rows.multiplicity)
    is_imbalanced = (
        len(counts) > 1 and fraction * (sum(counts) - max(counts)) < MIN_HOLDOUT_MINORITY
    )
    too_small = rows.num_groups < MIN_HOLDOUT_ROWS or is_imbalanced
    if early_stopping is False or (early_stopping == "auto" and too_small):
        return np.zeros(len(y))
    fractions = split_holdout(rows, strata, fraction)
    if early_stopping is True and not fractions.any():
        raise UserError(
            f"expected enough distinct rows for {name}={fraction}, got {rows.num_groups}; set "
            "early_stopping=False"
        )
    return fractions


def make_training_config(
    estimator: Any, rows: int, *, model: TableConfig, seed: int, epochs: int | None = None
) -> TrainingConfig:
    """Return the training settings of one fit.

    Args:
        estimator: supplies the parameters
        rows: rows per epoch, for `batch_size="auto"` and `max_epochs="auto"`
        model: config of the network, for the schedule of its wiring and the default of `lr`
        seed: seed of the fit
        epochs: number of epochs; `max_epochs` if None
    """
    size = estimator.batch_size
    if size == "auto":
        size = choose_batch_size(rows)
    else:
        size = _check_count("batch_size: expected 'auto' or", size)
    if epochs is not None:
        epochs = _check_epochs("epochs: expected None or", epochs)
    elif estimator.max_epochs == "auto":
        epochs = choose_num_epochs(rows, size, max_epochs=estimator._max_auto_epochs)
    else:
        epochs = _check_epochs("max_epochs: expected 'auto' or", estimator.max_epochs)
    patience = _check_count("patience: expected", estimator.patience)
    if str(estimator.precision) not in PRECISIONS:
        raise UserError(unknown_name_message("precision", str(estimator.precision), PRECISIONS))
    if estimator.max_seconds is not None and not _to_float(estimator.max_seconds) > 0:
        raise UserError(f"max_seconds: expected a positive number, got {estimator.max_seconds!r}")
    _check_fraction(estimator, "average", 0 <= _to_float(estimator.average) < 1)
    for name in ("optimizer", "schedule"):
        value = getattr(estimator, name)
        if not isinstance(value, str) and not (value is None and name == "schedule"):
            raise UserError(f"{name}: expected a call string such as 'adamw', got {value!r}")
    lr = estimator.lr
    if lr is None:
        lr = MEMBERS_LR if model.model == "mlp" and model.members > 1 else DEFAULT_LR
    for name, value in (("lr", lr), ("weight_decay", estimator.weight_decay)):
        if not 0 <= _to_float(value) < math.inf:
            raise UserError(f"{name}: expected a finite number >= 0, got {value!r}")
    return TrainingConfig(
        optimizer=estimator.optimizer,
        lr=float(lr),
        weight_decay=float(estimator.weight_decay),
        schedule=estimator.schedule or recommended_schedule(model.wiring),
        batch_size=size,
        max_epochs=epochs,
        patience=patience,
        average=float(estimator.average),
        max_seconds=estimator.max_seconds,
        precision=estimator.precision,
        seed=derive_seed(seed, "training"),
    )


def to_python_scalar(value: Any) -> Any:
    """Convert a NumPy scalar to a Python scalar; return other values unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def _check_count(description: str, value: Any) -> int:
    if not _is_integer(value) or value < 1:
        raise UserError(f"{description} an integer >= 1, got {to_python_scalar(value)!r}")
    return int(value)


def _check_epochs(description: str, value: Any) -> int:
    if _is_integer(value) and value > MAX_EPOCHS:
        raise UserError(
            f"{description} an integer up to {MAX_EPOCHS:,}, got {to_python_scalar(value)!r}; "
            "limit the time with max_seconds"
        )
    return _check_count(description, value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _to_float(value: Any) -> float:
    """Return a number as float, and NaN for anything else: no comparison admits NaN."""
    is_real = isinstance(value, int | float | np.integer | np.floating)
    return float(value) if is_real and not isinstance(value, bool) else math.nan


def _check_fraction(estimator: Any, name: str, is_valid: bool) -> None:
    if not is_valid:
        raise UserError(
            f"{name}: expected a fraction between 0 and 1, got {getattr(estimator, name)!r}"
        )
