"""Encodings of the target of a classifier, with its losses; what all targets share.

`number_targets.py` has the targets of a regressor.
"""

import numbers
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.core.errors import UserError

CLASS_LOSSES = ("cross_entropy", "ordinal")


class Target(Protocol):
    """How a target is encoded, what the outputs of the network mean, and the loss."""

    @property
    def outputs(self) -> int:
        """Number of model outputs."""

    def encode(self, y: np.ndarray) -> Tensor:
        """Convert the target to a tensor, (rows) or (rows, targets)."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each row from outputs, (rows, outputs), and encoded targets."""

    def initial_bias(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the initial bias of the head, (outputs): the best constant prediction."""


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


def reject_mixed_labels(y: np.ndarray) -> None:
    """Raise `UserError` for class labels that cannot be sorted, such as numbers and strings."""
    if y.dtype.kind == "O" and len({comparable_type(each) for each in y}) > 1:
        raise UserError(
            "y: expected class labels of one type, got several types, such as numbers and strings"
        )


def comparable_type(value: Any) -> type:
    """Return the type that values must share to be sorted: any real number, str, or their own."""
    return next((each for each in (numbers.Real, str) if isinstance(value, each)), type(value))


def ordered_categories(y: Any) -> list[Any] | None:
    """Return the categories of an ordered pandas Categorical, lowest first, else None."""
    dtype: Any = getattr(y, "dtype", None)
    return dtype.categories.tolist() if getattr(dtype, "ordered", None) else None


def rank_classes(classes: np.ndarray, categories: list[Any] | None) -> tuple[int, ...]:
    """Return the codes of the classes from the lowest class to the highest.

    Args:
        classes: sorted labels
        categories: labels in their order, or None if the target has none of its own

    Raises:
        UserError: if the labels are not numbers and have no order
    """
    if categories is not None:
        return tuple(sorted(range(len(classes)), key=lambda code: categories.index(classes[code])))
    if not all(isinstance(label, numbers.Real) for label in classes.tolist()):
        raise UserError(
            "loss='ordinal': expected numbers or an ordered pandas Categorical as y, got labels "
            f"without an order, such as {classes.tolist()[0]!r}"
        )
    return tuple(range(len(classes)))


@dataclass(frozen=True)
class ClassTarget:
    """Classes with the cross entropy, or with an ordinal loss if they have an order."""

    classes: int
    """Number of classes."""
    order: tuple[int, ...] | None = None
    """Class codes from the lowest class to the highest, for the ordinal loss."""

    @property
    def outputs(self) -> int:
        """Number of model outputs: one logit per class."""
        return self.classes

    def encode(self, y: np.ndarray) -> Tensor:
        """Convert class codes to a tensor, (rows) int64."""
        return torch.from_numpy(y.astype(np.int64))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy or the ordinal loss of each row."""
        if self.order is None:
            return F.cross_entropy(outputs.float(), targets, reduction="none")
        order = torch.tensor(self.order, device=outputs.device)
        return ordinal_loss(outputs.float()[:, order], order.argsort()[targets])

    def initial_bias(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the initial bias of the head: the logarithm of each class frequency."""
        mass = torch.bincount(targets, weights.double(), self.classes)
        return (mass / mass.sum()).clamp_min(1e-6).log()


def ordinal_loss(logits: Tensor, ranks: Tensor) -> Tensor:
    """Return the cross entropy of the events "class at most k", averaged over k.

        p = softmax(logits), P_k = p_0 + ... + p_k
        loss = -mean over k < K - 1 of [rank <= k] * log(P_k) + [rank > k] * log(1 - P_k)

    A class far from the true one costs more than its neighbor. Each event has a proper scoring
    rule, so the loss is smallest at the true probabilities, as the cross entropy is.

    Args:
        logits: (rows, classes), from the lowest class to the highest
        ranks: (rows) rank of the true class
    """
    log_p = logits.log_softmax(1)
    at_most = log_p.logcumsumexp(1)[:, :-1]
    above = log_p.flip(1).logcumsumexp(1).flip(1)[:, 1:]
    is_at_most = ranks[:, None] <= torch.arange(logits.shape[1] - 1, device=ranks.device)
    return -torch.where(is_at_most, at_most, above).mean(1)
