"""Targets of a regressor: one number, quantiles of a number, or several numbers.

| class | outputs | losses |
|---|---|---|
| `NumberTarget` | 1 | squared_error, absolute_error, huber, a function |
| `LogTarget` | 1 | poisson, gamma |
| `QuantileTarget` | one per quantile | pinball |
| `TargetList` | one per target | mean of the losses of its targets |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.tabular.training.number_targets import (
    LogTarget,
    LossFunction,
    NumberTarget,
    weighted_quantiles,
)

SCALINGS = ("auto", "standard", "quantile")
LOSSES = ("squared_error", "absolute_error", "huber", "poisson", "gamma")


@dataclass(frozen=True)
class QuantileTarget:
    """Quantiles of a number, with the mean of their pinball losses.

    Outputs are sorted before the loss and before they are decoded, so that quantiles never cross.
    Sorting does not increase the loss (Chernozhukov, Fernandez-Val and Galichon, Quantile and
    Probability Curves Without Crossing, 2010, arXiv 0704.3649).
    """

    kind: ClassVar[str] = "quantiles"
    number: NumberTarget
    """Scaling of the number."""
    quantiles: tuple[float, ...]
    """Increasing, between 0 and 1."""

    @property
    def outputs(self) -> int:
        """Number of model outputs: one per quantile."""
        return len(self.quantiles)

    def encode(self, y: np.ndarray) -> Tensor:
        """Convert values to the scale of the model, (rows) float32."""
        return self.number.encode(y)

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """Convert model outputs to quantiles, (rows, quantiles), increasing in each row."""
        return self.number.to_values(np.sort(outputs, axis=1))

    def to_values(self, scaled: np.ndarray) -> np.ndarray:
        """Convert encoded values back."""
        return self.number.to_values(scaled)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean pinball loss of each row."""
        errors = targets[:, None] - outputs.float().sort(1).values
        levels = errors.new_tensor(self.quantiles)
        return torch.maximum(levels * errors, (levels - 1) * errors).mean(1)

    def initial_bias(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the initial bias of the head: the quantiles of the training values."""
        return weighted_quantiles(targets, weights, self.quantiles)

    def to_json(self) -> dict[str, Any]:
        """Return the target as JSON-serializable data."""
        return {
            "kind": self.kind,
            "number": self.number.to_json(),
            "quantiles": list(self.quantiles),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "QuantileTarget":
        """Rebuild a target from the output of `to_json`."""
        return cls(NumberTarget.from_json(data["number"]), tuple(data["quantiles"]))


@dataclass(frozen=True)
class TargetList:
    """Several numbers per row; the loss is the mean of theirs."""

    kind: ClassVar[str] = "list"
    targets: tuple[NumberTarget | LogTarget, ...]

    @property
    def outputs(self) -> int:
        """Number of model outputs: one per target."""
        return len(self.targets)

    def encode(self, y: np.ndarray) -> Tensor:
        """Convert values, (rows, targets), to the scale of the model, in float32."""
        columns = zip(self.targets, y.T, strict=True)
        return torch.stack([target.encode(column) for target, column in columns], 1)

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """Convert model outputs to predictions, (rows, targets)."""
        columns = enumerate(self.targets)
        return np.stack([target.decode(outputs[:, [index]]) for index, target in columns], 1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of each row over the targets."""
        losses = [
            target.loss(outputs[:, index : index + 1], targets[:, index])
            for index, target in enumerate(self.targets)
        ]
        return torch.stack(losses).mean(0)

    def initial_bias(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the initial bias of the head, one for each target."""
        columns = zip(self.targets, targets.T, strict=True)
        return torch.cat([target.initial_bias(column, weights) for target, column in columns])

    def to_json(self) -> dict[str, Any]:
        """Return the target as JSON-serializable data."""
        return {"kind": self.kind, "targets": [target.to_json() for target in self.targets]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TargetList":
        """Rebuild a target from the output of `to_json`."""
        return cls(tuple(_single_from_json(each) for each in data["targets"]))


RegressionTarget = NumberTarget | LogTarget | QuantileTarget | TargetList


def make_regression_target(
    y: np.ndarray,
    weights: np.ndarray,
    *,
    scaling: str = "auto",
    loss: str | LossFunction = "squared_error",
    quantiles: Sequence[float] | None = None,
) -> RegressionTarget:
    """Fit the target of a regressor to training values.

    Args:
        y: (rows) or (rows, targets) values
        weights: (rows) positive weights
        scaling: "standard", "quantile", or "auto"
        loss: name of the loss, or a function
        quantiles: quantiles to predict instead of one number

    Raises:
        UserError: for settings that exclude each other, and for values that a loss does not allow
    """
    check_settings(scaling=scaling, loss=loss, quantiles=quantiles)
    if quantiles is not None:
        if y.ndim == 2:
            raise UserError(
                f"quantiles: expected one target, got {y.shape[1]}; fit one estimator per target"
            )
        return QuantileTarget(
            NumberTarget.from_values(y, weights, scaling), tuple(map(float, quantiles))
        )
    if y.ndim == 2:
        return TargetList(tuple(_make_single(each, weights, scaling, loss) for each in y.T))
    return _make_single(y, weights, scaling, loss)


def check_settings(*, scaling: Any, loss: Any, quantiles: Any) -> None:
    """Raise `UserError` for invalid settings of a target."""
    if scaling not in SCALINGS:
        raise UserError(unknown_name_message("target_scaling", str(scaling), SCALINGS))
    if not callable(loss) and loss not in LOSSES:
        raise UserError(unknown_name_message("loss", str(loss), LOSSES))
    if scaling == "quantile" and loss not in ("squared_error", "absolute_error"):
        raise UserError(
            "target_scaling='quantile': expected loss='squared_error' or 'absolute_error', got "
            f"{loss!r}; use target_scaling='standard'"
        )
    if quantiles is None:
        return
    if callable(loss) or loss != "squared_error":
        raise UserError(
            f"loss: expected no loss beside quantiles, which have their own, got {loss!r}"
        )
    try:
        values = [float(each) for each in quantiles]
    except (TypeError, ValueError):
        values = []
    rising = all(low < high for low, high in pairwise(values))
    if not values or not all(0 < each < 1 for each in values) or not rising:
        raise UserError(
            "quantiles: expected increasing numbers between 0 and 1, such as [0.1, 0.5, 0.9], got "
            f"{quantiles!r}"
        )


def target_from_json(data: Mapping[str, Any]) -> RegressionTarget:
    """Rebuild any target from its `to_json`; files of version 2 have no kind."""
    kind = data.get("kind", NumberTarget.kind)
    if kind == QuantileTarget.kind:
        return QuantileTarget.from_json(data)
    if kind == TargetList.kind:
        return TargetList.from_json(data)
    return _single_from_json(data)


def _make_single(
    y: np.ndarray, weights: np.ndarray, scaling: str, loss: str | LossFunction
) -> NumberTarget | LogTarget:
    if loss in ("poisson", "gamma"):
        return LogTarget.from_values(y, weights, str(loss))
    return NumberTarget.from_values(y, weights, scaling, loss)


def _single_from_json(data: Mapping[str, Any]) -> NumberTarget | LogTarget:
    is_log = data.get("kind") == LogTarget.kind
    return LogTarget.from_json(data) if is_log else NumberTarget.from_json(data)
