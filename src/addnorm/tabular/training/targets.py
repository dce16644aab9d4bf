"""Targets: what is asked of a row, as numbers that a model can learn."""

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
OUTLIER_RATIO = 4.0
"""A standard deviation so many times that of the middle half of the values speaks of outliers."""
MAX_VALUE_FRACTION = 0.5
"""Share of the weight at one value beyond which quantiles are not chosen by themselves."""


def reject_missing_targets(y: Any) -> None:
    """A target must be there in every row, and be no moment."""
    if y is None:
        return  # scikit-learn has words for it
    import pandas

    array = np.asarray(y)
    if array.dtype.kind == "O" and pandas.isna(array).any():
        raise UserError("Input y contains NaN: the target is absent in some rows; leave them out")
    if array.dtype.kind in "mM":
        raise UserError(
            f"Input y holds moments or spans of time ({array.dtype}); make numbers or texts of them"
        )


def comparable_type(value: Any) -> type:
    """Values of one family can be put in order."""
    return next((each for each in (numbers.Real, str) if isinstance(value, each)), type(value))


@dataclass(frozen=True)
class ClassTarget:
    """Which of several classes; the loss is the cross entropy."""

    classes: int

    @property
    def outputs(self) -> int:
        """Logits."""
        return self.classes

    def encode(self, y: np.ndarray) -> Tensor:
        """Numbers of classes."""
        return torch.from_numpy(y.astype(np.int64))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """For each row."""
        return F.cross_entropy(outputs.float(), targets, reduction="none")

    def initial_bias(self, targets: Tensor, weights: Tensor) -> Tensor:
        """The head's bias: the logarithm of each class's share."""
        mass = torch.bincount(targets, weights.double(), self.classes)
        return (mass / mass.sum()).clamp_min(1e-6).log()


@dataclass(frozen=True)
class NumberTarget:
    """A number; the loss is the squared error on the model's scale."""

    center: float
    scale: float
    curve: Quantiles | None = None
    outputs: int = 1

    @classmethod
    def from_values(cls, y: np.ndarray, weights: np.ndarray, scaling: str) -> "NumberTarget":
        """Standardised, or by quantiles where outliers would hide everything else.

        A mean of scores is no score of the mean: by quantiles, answers lean to the median. Where
        one value fills most rows (no claim, no rain), that would be this value for almost all.
        """
        if scaling not in SCALINGS:
            raise UserError(unknown_name_message("target_scaling", str(scaling), SCALINGS))
        # Squares of huge numbers are none, of tiny ones 0; a power of two changes no digit.
        unit = 2.0 ** (int(np.frexp(np.abs(y).max())[1]) - 1)
        center = float(np.average(y / unit, weights=weights)) * unit
        spread = np.average((y / unit - center / unit) ** 2, weights=weights)
        scale = float(np.sqrt(spread)) * unit or 1.0
        curve = Quantiles.from_samples(y, weights)
        if scaling == "auto":
            low, high = np.interp([-0.6745, 0.6745], curve.scores, curve.values)
            middle = (high - low) / 1.349
            wild = (
                middle > 0
                and scale > OUTLIER_RATIO * middle
                and _max_weight_fraction(y, weights) <= MAX_VALUE_FRACTION
            )
            scaling = "quantile" if wild else "standard"
        return cls(center, scale, curve if scaling == "quantile" else None)

    def encode(self, y: np.ndarray) -> Tensor:
        """On the model's scale."""
        made = (y - self.center) / self.scale if self.curve is None else self.curve.transform(y)
        return torch.from_numpy(made.astype(np.float32))

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """On the scale of the target."""
        return (
            self.center + self.scale * outputs
            if self.curve is None
            else self.curve.inverse_transform(outputs)
        )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """For each row."""
        return (outputs[:, 0].float() - targets).square()

    def initial_bias(self, targets: Tensor, weights: Tensor) -> Tensor:
        """The head's bias: the mean."""
        return (targets * weights).sum(0, keepdim=True) / weights.sum()

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        curve = None if self.curve is None else self.curve.to_json()
        return {"center": self.center, "scale": self.scale, "curve": curve}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "NumberTarget":
        """From what `to_plain` made."""
        curve = None if data["curve"] is None else Quantiles.from_json(data["curve"])
        return cls(data["center"], data["scale"], curve)


def _max_weight_fraction(y: np.ndarray, weights: np.ndarray) -> float:
    """The largest share of the weight that one value has."""
    _, place = np.unique(y, return_inverse=True)
    return float(np.bincount(place, weights).max() / weights.sum())


Target = ClassTarget | NumberTarget
