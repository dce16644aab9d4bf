"""Weights of rows by their class."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils import compute_sample_weight

from addnorm.core.errors import UserError


def class_weights(class_weight: Any, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the class weight of every row; rows of weight 0 do not count for "balanced"."""
    if not (
        class_weight is None or isinstance(class_weight, Mapping) or str(class_weight) == "balanced"
    ):
        raise UserError(
            "class_weight: expected a dict from class to weight, 'balanced' or None, got "
            f"{class_weight!r}"
        )
    row_weights, positive = np.ones(len(y)), weights > 0
    if class_weight is not None:
        row_weights[positive] = compute_sample_weight(class_weight, y[positive])
    if (row_weights < 0).any() or not row_weights[positive].any():
        raise UserError(
            "class_weight: expected weights >= 0, at least one of them positive, got "
            f"{class_weight!r}"
        )
    return row_weights
