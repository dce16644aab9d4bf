"""Targets of a regressor with one number per row: its encoding and its losses.

`NumberTarget` predicts center + scale * output, `LogTarget` mean * exp(output).
`regression_targets.py` builds them, and targets with several outputs from them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.tabular.columns.quantiles import Quantiles

CUSTOM = "custom"
"""Name of a loss that is the user's function, in saved files."""
CONSTANT_SCALE = 2.0**-44
"""Scale of a constant target, relative to its size."""
OUTLIER_RATIO = 4.0
"""Ratio of the standard deviation to a robust estimate of it from which there are outliers."""
MAX_VALUE_FRACTION = 0.5
"""Fraction of the weight at a single value beyond which "auto" does not use quantiles."""

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Maps predictions and values, both (rows) on the scale of the target, to losses, (rows)."""


@dataclass(frozen=True)
class NumberTarget:
    """Numbers, standardized or quantile-transformed, with a loss on that scale."""

    kind: ClassVar[str] = "number"
    center: float
    scale: float
    curve: Quantiles | None = None
    """Quantile transform; None if the target is standardized with center and scale."""
    criterion: str = "squared_error"
    """Name of the loss."""
    function: LossFunction | None = None
    """Loss of the user, on the scale of the target; not saved."""
    outputs: int = 1
    """Number of model outputs."""

    @classmethod
    def from_values(
        cls,
        y: np.ndarray,
        weights: np.ndarray,
        scaling: str,
        loss: str | LossFunction = "squared_error",
    ) -> "NumberTarget":
        """Fit the scaling to training values.

        Args:
            y: (rows) values
            weights: (rows) positive weights
            scaling: "standard", "quantile", or "auto"
            loss: name of the loss, or a function

        Outliers dominate the squared error of a standardized target, so "auto" uses quantiles if
        there are any. The mean of the scores is not the score of the mean, so quantiles bias
        predictions towards the median. If most rows share one value, such as no claim or no rain,
        the median is that value, and "auto" standardizes. Losses that resist outliers need no
        quantiles; they are scaled by the interquartile range, which outliers do not change.
        """
        # Divide by a power of two, which is exact: squares of huge values would overflow, and
        # squares of tiny values would underflow.
        unit = 2.0 ** (int(np.frexp(np.abs(y).max())[1]) - 1)
        center = float(np.average(y / unit, weights=weights)) * unit
        spread = np.average((y / unit - center / unit) ** 2, weights=weights)
        scale = float(np.sqrt(spread)) * unit
        if not scale or np.ptp(y) == 0:  # all predictions become this value
            scale = CONSTANT_SCALE * max(1.0, abs(center))
        curve = Quantiles.from_samples(y, weights)
        # Standard deviation of a normal distribution with the same interquartile range.
        low, middle, high = np.interp([-0.6745, 0.0, 0.6745], curve.scores, curve.values)
        robust_scale = (high - low) / 1.349
        resists_outliers = loss in ("absolute_error", "huber")
        if scaling == "auto":
            has_outliers = (
                loss == "squared_error"
                and robust_scale > 0
                and scale > OUTLIER_RATIO * robust_scale
                and _max_weight_fraction(y, weights) <= MAX_VALUE_FRACTION
            )
            scaling = "quantile" if has_outliers else "standard"
            if resists_outliers and robust_scale > 0:
                center, scale = float(middle), float(robust_scale)
        function = loss if callable(loss) else None
        name = CUSTOM if callable(loss) else loss
        return cls(center, scale, curve if scaling == "quantile" else None, name, function)

    def encode(self, y: np.ndarray) -> Tensor:
        """Convert values to the scale of the model, (rows) float32."""
        scaled = (y - self.center) / self.scale if self.curve is None else self.curve.transform(y)
        return torch.from_numpy(scaled.astype(np.float32))

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """Convert model outputs, (rows, 1), to predictions, (rows)."""
        return self.to_values(outputs[:, 0])

    def to_values(self, scaled: np.ndarray) -> np.ndarray:
        """Convert numbers from the scale of the model to that of the target, in any shape."""
        if self.curve is None:
            return self.center + self.scale * scaled
        return self.curve.inverse_transform(scaled)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each row."""
        predictions = outputs[:, 0].float()
        if self.criterion == "squared_error":
            return (predictions - targets).square()
        if self.criterion == "absolute_error":
            return (predictions - targets).abs()
        if self.criterion == "huber":
            return F.huber_loss(predictions, targets, reduction="none")
        return self._custom_loss(predictions, targets)

    def _custom_loss(self, predictions: Tensor, targets: Tensor) -> Tensor:
        if self.function is None:
            raise UserError("loss: expected the function of the fit, got a saved estimator")
        # Center and scale may exceed float32, in which huge targets are only known scaled.
        scaled = predictions.double(), targets.double()
        losses = self.function(*(self.center + self.scale * each for each in scaled))
        if not isinstance(losses, Tensor) or losses.shape != targets.shape:
            shape = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise UserError(
                f"loss: expected a function that returns the loss of each row, a tensor of shape "
                f"{list(targets.shape)}, got {shape}; use reduction='none'"
            )
        return losses.float()

    def initial_bias(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the initial bias of the head: the weighted median for the absolute error, else
        the weighted mean."""
        if self.criterion == "absolute_error":
            return weighted_quantiles(targets, weights, [0.5])
        return (targets * weights).sum(0, keepdim=True) / weights.sum()

    def to_json(self) -> dict[str, Any]:
        """Return the target as JSON-serializable data."""
        curve = None if self.curve is None else self.curve.to_json()
        return {
            "kind": self.kind,
            "center": self.center,
            "scale": self.scale,
            "curve": curve,
            "criterion": self.criterion,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "NumberTarget":
        """Rebuild a target from the output of `to_json`."""
        curve = None if data["curve"] is None else Quantiles.from_json(data["curve"])
        return cls(data["center"], data["scale"], curve, data.get("criterion", "squared_error"))


@dataclass(frozen=True)
class LogTarget:
    """Counts or positive amounts: the output is the logarithm of prediction / mean.

    With t = y / mean and m = exp(output), the losses are half the deviances of the distributions:

        poisson: t * log(t / m) - t + m
        gamma: t / m - log(t / m) - 1
    """

    kind: ClassVar[str] = "log"
    mean: float
    criterion: str
    """Name of the loss."""
    outputs: int = 1
    """Number of model outputs."""

    @classmethod
    def from_values(cls, y: np.ndarray, weights: np.ndarray, loss: str) -> "LogTarget":
        """Compute the mean of training values.

        Raises:
            UserError: for values that the distribution does not have
        """
        limit, is_valid = (">= 0", y >= 0) if loss == "poisson" else ("> 0", y > 0)
        if not is_valid.all() or not y.any():
            example = y[~is_valid][0] if not is_valid.all() else 0
            raise UserError(
                f"y: expected numbers {limit}, not all 0, for loss={loss!r}, got {example:g}"
            )
        unit = float(y.max())  # sums of huge values would overflow
        return cls(float(np.average(y / unit, weights=weights)) * unit, loss)

    def encode(self, y: np.ndarray) -> Tensor:
        """Divide values by the mean, (rows) float32."""
        return torch.from_numpy((y / self.mean).astype(np.float32))

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """Convert model outputs, (rows, 1), to predictions, (rows)."""
        return self.mean * np.exp(outputs[:, 0])

    def to_values(self, scaled: np.ndarray) -> np.ndarray:
        """Convert encoded values back."""
        return self.mean * scaled

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return half the unit deviance of each row."""
        log_prediction = outputs[:, 0].float()
        if self.criterion == "poisson":
            surprise = torch.xlogy(targets, targets) - targets * log_prediction
            return surprise - targets + log_prediction.exp()
        log_ratio = targets.log() - log_prediction
        return log_ratio.exp() - log_ratio - 1

    def initial_bias(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the initial bias of the head: the logarithm of the weighted mean."""
        return ((targets * weights).sum(0, keepdim=True) / weights.sum()).log()

    def to_json(self) -> dict[str, Any]:
        """Return the target as JSON-serializable data."""
        return {"kind": self.kind, "mean": self.mean, "criterion": self.criterion}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "LogTarget":
        """Rebuild a target from the output of `to_json`."""
        return cls(data["mean"], data["criterion"])


def weighted_quantiles(values: Tensor, weights: Tensor, levels: Sequence[float]) -> Tensor:
    """Return the smallest values with at least these fractions of the weight at or below them."""
    order = values.argsort()
    mass = weights.double()[order].cumsum(0)
    wanted = mass.new_tensor(levels) * mass[-1]
    return values[order][torch.searchsorted(mass, wanted).clamp_max(len(values) - 1)]


def _max_weight_fraction(y: np.ndarray, weights: np.ndarray) -> float:
    """Return the fraction of the weight at the most frequent value."""
    _, inverse = np.unique(y, return_inverse=True)
    return float(np.bincount(inverse, weights).max() / weights.sum())
