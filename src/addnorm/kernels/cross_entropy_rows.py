"""Softmax cross entropy of rows of logits, with the gradient of the logits.

loss = (1 - smoothing) * -log p[target] + smoothing * mean of -log p,    p = softmax(logits)
grad = p - smoothing / classes - (1 - smoothing) at the target

The native library takes dense float32 logits on a CPU, MIN_NATIVE_LOGITS or more, in eager mode. It
overwrites the logits with their gradient in one visit of each row. On a GPU the kernel of the
optional package Liger-Kernel does the same; of several largest logits it takes the first as the
prediction. Otherwise torch computes the same.

>>> losses = cross_entropy_rows(torch.zeros(1, 4), torch.tensor([2]))
>>> losses.nll, losses.grad
(tensor(1.3863), tensor([[ 0.2500,  0.2500, -0.7500,  0.2500]]))
"""

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from addnorm.kernels import library, liger

CROSS_ENTROPY_STRUCT = struct.Struct("@2qf6P")
"""`struct addnorm_cross_entropy` of native/cross_entropy/cross_entropy.h."""
MIN_NATIVE_LOGITS = 2**12
"""Number of logits from which the native library is faster (`addnorm bench kernels`)."""


class RowLosses(NamedTuple):
    """Sums over rows, scalars in float32 or better, and the gradient of the logits."""

    nll: Tensor
    """Sum of -log p[target]."""
    smoothing_nll: Tensor
    """Sum of the mean of -log p over all classes; 0 without smoothing."""
    correct: Tensor
    """Number of rows whose target has the largest logit, ties included."""
    grad: Tensor | None
    """(rows, classes) gradient of (1 - smoothing) * nll + smoothing * smoothing_nll."""


def cross_entropy_rows(
    logits: Tensor,
    targets: Tensor,
    *,
    smoothing: float = 0.0,
    requires_grad: bool = True,
    valid: Tensor | None = None,
) -> RowLosses:
    """Return the losses of all rows, and the gradient of the logits if required.

    Args:
        logits: (rows, classes); may be overwritten
        targets: (rows) class indices
        smoothing: label smoothing
        requires_grad: whether to compute the gradient
        valid: (rows) boolean, False at rows that count as 0; None if all count
    """
    targets = targets.long()
    target = targets[:, None]
    if requires_grad and logits.is_contiguous() and liger.can_use_liger(logits, targets):
        return _liger_rows(logits, target, smoothing, valid)
    if valid is not None or not _can_use_native(logits, targets):
        return _reference_rows(logits, target, smoothing, requires_grad, valid)
    target_logits = logits.gather(1, target)[:, 0]  # raises if a target is not a class
    lse, mean, max_logit = _row_statistics(
        logits, targets.contiguous() if requires_grad else None, smoothing
    )
    nll = (lse - target_logits).sum()
    smoothing_nll = (lse - mean).sum() if smoothing else lse.new_zeros(())
    correct = (target_logits >= max_logit) & lse.isfinite()
    return RowLosses(nll, smoothing_nll, correct.sum(), logits if requires_grad else None)


def logsumexp(logits: Tensor) -> Tensor:
    """Return the logsumexp of each row of (rows, classes)."""
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
    """Return logsumexp, mean (only with smoothing) and maximum of each row, (3, rows).

    With targets, the logits are overwritten with their gradient.
    """
    rows, address = len(logits), logits.data_ptr()
    statistics = torch.empty(3, rows, dtype=torch.float64)
    grad, target = (0, 0) if targets is None else (address, targets.data_ptr())
    lse, mean, max_logit = (each.data_ptr() for each in statistics)
    outputs = (lse, mean if smoothing else 0, max_logit)
    arguments = CROSS_ENTROPY_STRUCT.pack(
        rows, logits.shape[1], smoothing, address, grad, target, *outputs
    )
    error = library.call_native("cross_entropy", arguments)
    assert not error, "a target is not a class"
    return statistics


def _liger_rows(
    logits: Tensor, target: Tensor, smoothing: float, valid: Tensor | None
) -> RowLosses:
    # The kernel returns the sum of both parts of the loss. Their difference follows from the
    # logits, which the kernel overwrites.
    difference = None
    if smoothing:
        difference = logits.mean(-1) - logits.gather(1, target)[:, 0]  # nll - smoothing_nll
    losses, correct = liger.cross_entropy_rows(
        logits, target[:, 0], smoothing=smoothing, valid=valid
    )
    total, num_correct = losses.sum(), correct.sum().long()
    if difference is None:
        return RowLosses(total, total.new_zeros(()), num_correct, logits)
    if valid is not None:
        difference = difference.masked_fill(~valid, 0.0)
    smoothing_nll = total - (1 - smoothing) * difference.sum()
    return RowLosses(smoothing_nll + difference.sum(), smoothing_nll, num_correct, logits)


def _reference_rows(
    logits: Tensor, target: Tensor, smoothing: float, requires_grad: bool, valid: Tensor | None
) -> RowLosses:
    # log p = logit - lse, and lse follows from the most likely class, whose p is far from 0. That
    # needs fewer passes over the logits than log_softmax and softmax.
    p, target_logits = logits.softmax(-1), logits.gather(1, target)
    highest, likeliest = logits.max(-1, keepdim=True)
    lse = highest - p.gather(1, likeliest).log()
    correct, nll = (target_logits >= highest) & lse.isfinite(), lse - target_logits
    smoothing_nll = lse.new_zeros(())
    if valid is not None:
        is_ignored = ~valid[:, None]
        correct, nll = correct & ~is_ignored, nll.masked_fill(is_ignored, 0.0)
        if smoothing:
            uniform = lse - logits.mean(-1, keepdim=True)
            smoothing_nll = uniform.masked_fill(is_ignored, 0.0).sum()
    elif smoothing:
        smoothing_nll = lse.sum() - logits.sum() / logits.shape[1]
    if requires_grad:
        if smoothing:
            p.sub_(smoothing / logits.shape[1])
        p.scatter_add_(1, target, p.new_full(target.shape, smoothing - 1))
        if valid is not None:
            p.masked_fill_(~valid[:, None], 0.0)
    return RowLosses(nll.sum(), smoothing_nll, correct.sum(), p if requires_grad else None)
