"""Softmax, losses and gradients of rows of logits: natively, or in plain torch."""

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from addnorm.kernels import library

CLASSES = struct.Struct("@2qf6P")
"""`struct addnorm_classes` of native/cross_entropy.h."""
LEAST = 2**12
"""Logits from which on the native library is faster (`addnorm bench kernels`)."""


class Found(NamedTuple):
    """Sums over the rows, which are scalars in float32 or better, and the gradient of each."""

    nll: Tensor
    spread: Tensor
    """Of the mean of -log p over all classes; 0 without smoothing."""
    correct: Tensor
    """Rows in which no class has more than the target."""
    grad: Tensor | None
    """(rows, classes), of (1 - smoothing) * nll + smoothing * spread, where it is wanted."""


def classify(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.0, wanted: bool = True
) -> Found:
    """What cross entropy tells of logits, (rows, classes), which may be overwritten.

    wanted: whether the gradient is
    """
    targets = targets.long()
    target = targets[:, None]
    if not _suits(logits, targets):
        return _plainly(logits, target, smoothing, wanted)
    found = logits.gather(1, target)[:, 0]  # refuses what is no class
    lse, mean, top = _rows(logits, targets.contiguous() if wanted else None, smoothing)
    spread = (lse - mean).sum() if smoothing else lse.new_zeros(())
    correct = (found >= top) & lse.isfinite()
    return Found((lse - found).sum(), spread, correct.sum(), logits if wanted else None)


def logsumexp(logits: Tensor) -> Tensor:
    """log of the sum of exp over each row of (rows, classes); (rows)."""
    if logits.requires_grad or not _suits(logits):
        return logits.logsumexp(-1)
    return _rows(logits)[0].to(logits.dtype)


def _suits(logits: Tensor, *others: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and logits.dtype == torch.float32
        and logits.is_contiguous()
        and library.suits(LEAST, logits, *others)
    )


def _rows(logits: Tensor, targets: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
    """logsumexp, mean (with smoothing) and greatest logit of each row, (3, rows); with targets, the
    logits become their gradient.
    """
    rows, at = len(logits), logits.data_ptr()
    made = torch.empty(3, rows, dtype=torch.float64)
    grad, aims = (0, 0) if targets is None else (at, targets.data_ptr())
    lse, mean, top = (each.data_ptr() for each in made)
    sums = (lse, mean if smoothing else 0, top)
    given = CLASSES.pack(rows, logits.shape[1], smoothing, at, grad, aims, *sums)
    wrong = library.run("cross_entropy", given)
    assert not wrong, "a target is no class"
    return made


def _plainly(logits: Tensor, target: Tensor, smoothing: float, wanted: bool) -> Found:
    # log p = logit - total. The total is that of the likeliest class, whose p is no tiny number:
    # few passes over the logits, and none for log p.
    p, found = logits.softmax(-1), logits.gather(1, target)
    highest, likeliest = logits.max(-1, keepdim=True)
    total = highest - p.gather(1, likeliest).log()
    spread = total.sum() - logits.sum() / logits.shape[1] if smoothing else total.new_zeros(())
    if wanted:
        if smoothing:
            p.sub_(smoothing / logits.shape[1])
        p.scatter_add_(1, target, p.new_full(target.shape, smoothing - 1))
    correct = ((found >= highest) & total.isfinite()).sum()
    return Found((total - found).sum(), spread, correct, p if wanted else None)
