"""Encodings of the target, with their losses: classes and numbers."""

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.tabular.columns.quantiles import Quantiles

SCALINGS = ("auto", "standard", "quantile")
CONSTANT_SCALE = 2.0**-44
"""Scale of a constant target, relative to its size."""
OUTLIER_RATIO = 4.0
"""Ratio of the standard deviation to a robust estimate of it from which there are outliers."""
MAX_VALUE_FRACTION = 0.5
"""Fraction of the weight at a single value beyond which "auto" does not use quantiles."""


def reject_missing_targets(y: Any) -> None:
    """Raise `UserError` if a target has missing values or consists of datetimes."""
    if y is None:
        return  # rejected by scikit-learn
    import pandas

    array = np.asarray(y)
    if array.dtype.kind == "O" and pandas.isna(array).any():
        raise UserError("Input y contains NaN: the target is missing in some rows; drop them")
    if array.dtype.kind in "mM":
        raise UserError(
            f"y: expected numbers or classes, got datetimes or timedeltas ({array.dtype}); convert "
            "them first"
        )


def comparable_type(value: Any) -> type:
    """Return the type that values must share to be sorted: any real number, str, or their own."""
    return next((each for each in (numbers.Real, str) if isinstance(value, each)), type(value))


@dataclass(frozen=True)
class ClassTarget:
    """Classes with the cross-entropy loss."""

    classes: int
    """Number of classes."""

    @property
    def outputs(self) -> int:
        """Number of model outputs: one logit per class."""
        return self.classes

    def encode(self, y: np.ndarray) -> Tensor:
        """Convert class codes to a tensor, (rows) int64."""
        return torch.from_numpy(y.astype(np.int64))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy of each row."""
        return F.cross_entropy(outputs.float(), targets, reduction="none")

    def initial_bias(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the initial bias of the head: the logarithm of each class frequency."""
        mass = torch.bincount(targets, weights.double(), self.classes)
        return (mass / mass.sum()).clamp_min(1e-6).log()


@dataclass(frozen=True)
class NumberTarget:
    """Numbers, standardized or quantile-transformed, with the squared error on that scale."""

    center: float
    scale: float
    curve: Quantiles | None = None
    """Quantile transform; None if the target is standardized with center and scale."""
    outputs: int = 1
    """Number of model outputs."""

    @classmethod
    def from_values(cls, y: np.ndarray, weights: np.ndarray, scaling: str) -> "NumberTarget":
        """Fit the scaling to training values.

        Args:
            y: (rows) values
            weights: (rows) positive weights
            scaling: "standard", "quantile", or "auto"

        Outliers dominate the squared error of a standardized target, so "auto" uses quantiles if
        there are any. The mean of the scores is not the score of the mean, so quantiles bias
        predictions towards the median. If most rows share one value, such as no claim or no rain,
        the median is that value, and "auto" standardizes.
        """
        if scaling not in SCALINGS:
            raise UserError(unknown_name_message("target_scaling", str(scaling), SCALINGS))
        # Divide by a power of two, which is exact: squares of huge values would overflow, and
        # squares of tiny values would underflow.
        unit = 2.0 ** (int(np.frexp(np.abs(y).max())[1]) - 1)
        center = float(np.average(y / unit, weights=weights)) * unit
        spread = np.average((y / unit - center / unit) ** 2, weights=weights)
        scale = float(np.sqrt(spread)) * unit
        if not scale or np.ptp(y) == 0:  # all predictions become this value
            scale = CONSTANT_SCALE * max(1.0, abs(center))
        curve = Quantiles.from_samples(y, weights)
        if scaling == "auto":
            # Standard deviation of a normal distribution with the same interquartile range.
            low, high = np.interp([-0.6745, 0.6745], curve.scores, curve.values)
            robust_scale = (high - low) / 1.349
            has_outliers = (
                robust_scale > 0
                and scale > OUTLIER_RATIO * robust_scale
                and _max_weight_fraction(y, weights) <= MAX_VALUE_FRACTION
            )
            scaling = "quantile" if has_outliers else "standard"
        return cls(center, scale, curve if scaling == "quantile" else None)

    def encode(self, y: np.ndarray) -> Tensor:
        """Convert values to the scale of the model, (rows) float32."""
        scaled = (y - self.center) / self.scale if self.curve is None else self.curve.transform(y)
        return torch.from_numpy(scaled.astype(np.float32))

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """Convert model outputs to the scale of the target."""
        if self.curve is None:
            return self.center + self.scale * outputs
        return self.curve.inverse_transform(outputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of each row."""
        return (outputs[:, 0].float() - targets).square()

    def initial_bias(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the initial bias of the head: the weighted mean."""
        return (targets * weights).sum(0, keepdim=True) / weights.sum()

    def to_json(self) -> dict[str, Any]:
        """Return the target as JSON-serializable data."""
        curve = None if self.curve is None else self.curve.to_json()
        return {"center": self.center, "scale": self.scale, "curve": curve}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "NumberTarget":
        """Rebuild a target from the output of `to_json`."""
        curve = None if data["curve"] is None else Quantiles.from_json(data["curve"])
        return cls(data["center"], data["scale"], curve)


def _max_weight_fraction(y: np.ndarray, weights: np.ndarray) -> float:
    """Return the fraction of the weight at the most frequent value."""
    _, inverse = np.unique(y, return_inverse=True)
    return float(np.bincount(inverse, weights).max() / weights.sum())


Target = ClassTarget | NumberTarget
