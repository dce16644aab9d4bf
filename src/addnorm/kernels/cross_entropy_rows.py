"""Softmax, losses and gradients of rows of logits: natively, or in plain torch."""

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from addnorm.kernels import library

CROSS_ENTROPY_STRUCT = struct.Struct("@2qf6P")
"""`struct addnorm_classes` of native/cross_entropy.h."""
MIN_NATIVE_LOGITS = 2**12
"""Logits from which on the native library is faster (`addnorm bench kernels`)."""


class RowLosses(NamedTuple):
    """Sums over the rows, which are scalars in float32 or better, and the gradient of each."""

    nll: Tensor
    smoothing_nll: Tensor
    """Of the mean of -log p over all classes; 0 without smoothing."""
    correct: Tensor
    """Rows in which no class has more than the target."""
    grad: Tensor | None
    """(rows, classes), of (1 - smoothing) * nll + smoothing * spread, where it is wanted."""


def cross_entropy_rows(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.0, requires_grad: bool = True
) -> RowLosses:
    """What cross entropy tells of logits, (rows, classes), which may be overwritten.

    wanted: whether the gradient is
    """
    targets = targets.long()
    target = targets[:, None]
    if not _can_use_native(logits, targets):
        return _reference_rows(logits, target, smoothing, requires_grad)
    found = logits.gather(1, target)[:, 0]  # refuses what is no class
    lse, mean, top = _row_statistics(
        logits, targets.contiguous() if requires_grad else None, smoothing
    )
    spread = (lse - mean).sum() if smoothing else lse.new_zeros(())
    correct = (found >= top) & lse.isfinite()
    return RowLosses((lse - found).sum(), spread, correct.sum(), logits if requires_grad else None)


def logsumexp(logits: Tensor) -> Tensor:
    """log of the sum of exp over each row of (rows, classes); (rows)."""
    if logits.requires_grad or not _can_use_native(logits):
        return logits.logsumexp(-1)
    return _row_statistics(logits)[0].to(logits.dtype)


def _can_use_native(logits: Tensor, *others: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and logits.dtype == torch.float32
        and logits.is_contiguous()
        and library.can_use_native(MIN_NATIVE_LOGITS, logits, *others)
    )


def _row_statistics(
    logits: Tensor, targets: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """logsumexp, mean (with smoothing) and greatest logit of each row, (3, rows); with targets, the
    logits become their gradient.
    """
    rows, at = len(logits), logits.data_ptr()
    made = torch.empty(3, rows, dtype=torch.float64)
    grad, aims = (0, 0) if targets is None else (at, targets.data_ptr())
    lse, mean, top = (each.data_ptr() for each in made)
    sums = (lse, mean if smoothing else 0, top)
    given = CROSS_ENTROPY_STRUCT.pack(rows, logits.shape[1], smoothing, at, grad, aims, *sums)
    wrong = library.call_native("cross_entropy", given)
    assert not wrong, "a target is no class"
    return made


def _reference_rows(
    logits: Tensor, target: Tensor, smoothing: float, requires_grad: bool
) -> RowLosses:
    # log p = logit - total. The total is that of the likeliest class, whose p is no tiny number:
    # few passes over the logits, and none for log p.
    p, found = logits.softmax(-1), logits.gather(1, target)
    highest, likeliest = logits.max(-1, keepdim=True)
    total = highest - p.gather(1, likeliest).log()
    spread = total.sum() - logits.sum() / logits.shape[1] if smoothing else total.new_zeros(())
    if requires_grad:
        if smoothing:
            p.sub_(smoothing / logits.shape[1])
        p.scatter_add_(1, target, p.new_full(target.shape, smoothing - 1))
    correct = ((found >= highest) & total.isfinite()).sum()
    return RowLosses((total - found).sum(), spread, correct, p if requires_grad else None)
