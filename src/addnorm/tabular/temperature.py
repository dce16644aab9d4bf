"""Temperature of a classifier, on its validation rows or, on small tables, on all rows.

Too few rows of a small table are held out. There each row is predicted by a network that is fitted
to other rows, and the temperature of these predictions is used for the network of the whole table.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import TableModel
from addnorm.tabular.dataset import CheckedInput, FitData, build_fit_data
from addnorm.tabular.fitting import out_of_fold_outputs, train_networks
from addnorm.tabular.inspection.calibration import (
    CROSS_FITTED_LOG_TEMPERATURES,
    MIN_CALIBRATION_ROWS,
    fit_temperature,
)
from addnorm.tabular.params import make_model_config
from addnorm.tabular.training.prediction import predict

FOLDS = 5
MAX_ROWS = 1000
"""Distinct rows below which a temperature is cross-fitted."""
MIN_ROWS = 4 * FOLDS
"""Distinct rows from which a temperature is cross-fitted."""
COST = FOLDS - 1
"""Cost relative to that of the network of the whole table: each fold trains on all other rows."""


def has_calibration_rows(data: FitData) -> bool:
    """Return whether enough rows are held out for a temperature."""
    held_out = sum(0 if fold.valid is None else len(fold.valid.weights) for fold in data.folds)
    return held_out >= MIN_CALIBRATION_ROWS


def needs_cross_fitting(estimator: Any, data: FitData) -> bool:
    """Return whether too few rows of a small table are held out for a temperature.

    The average of several members is calibrated without one: LEDGER.md, "Tables: speed of the
    default".
    """
    if estimator.calibration != "temperature" or estimator.bagging is not None:
        return False
    config = make_model_config(estimator, data.encoder, data.target.outputs)
    is_small = MIN_ROWS <= data.distinct_rows < MAX_ROWS
    return config.members == 1 and is_small and not has_calibration_rows(data)


def holdout_temperature(modules: Sequence[TableModel], data: FitData) -> float:
    """Return the temperature of networks on their validation rows."""
    folds = [fold.valid for fold in data.folds if fold.valid is not None]
    logits = [
        predict(module, fold.cells, data.reference).double().cpu().numpy()
        for module, fold in zip(modules, folds, strict=True)
    ]
    return fit_temperature(
        np.concatenate(logits),
        torch.cat([fold.targets for fold in folds]).numpy(),
        torch.cat([fold.weights for fold in folds]).numpy(),
    )


def cross_fit_temperature(
    estimator: Any,
    inputs: CheckedInput,
    y: np.ndarray,
    data: FitData,
    *,
    seed: int,
    deadline: float,
) -> float:
    """Return the temperature of a classifier, from out-of-fold predictions.

    Args:
        estimator: supplies the parameters
        inputs: checked table with positive weights
        y: (rows) class codes
        data: encoded rows of the fit
        seed: seed of the fit
        deadline: time of `time.monotonic` at which training ends
    """
    bagged = clone(estimator).set_params(bagging=FOLDS, verbose=False)
    if hasattr(estimator, "pretrained_"):
        bagged.pretrained_ = estimator.pretrained_
    folded = build_fit_data(bagged, inputs, y, encoder=data.encoder, target=data.target, seed=seed)
    trained = folded
    if data.folds[0].valid is None:  # no best epoch is chosen for the network of the whole table
        trained = replace(folded, folds=tuple(each._replace(valid=None) for each in folded.folds))
    modules, _ = train_networks(
        bagged, trained, seed=derive_seed(seed, "calibration"), deadline=deadline, previous=None
    )
    logits = out_of_fold_outputs(modules, folded)
    valid = [fold.valid for fold in folded.folds if fold.valid is not None]
    index = np.concatenate([fold.valid_index for fold in folded.folds])
    return fit_temperature(
        logits[index],
        torch.cat([each.targets for each in valid]).numpy(),
        torch.cat([each.weights for each in valid]).numpy(),
        bounds=CROSS_FITTED_LOG_TEMPERATURES,
    )
