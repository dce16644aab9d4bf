"""Norms without a residual add: LayerNorm, RMSNorm and DyT.

Which implementation runs:

    GPU, eager, with the optional package Liger-Kernel    `liger`, one kernel
    anything else                                         torch
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.kernels import liger
from addnorm.kernels.liger import can_use_norm


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Return weight * x / sqrt(mean(x ** 2) + eps). x: (..., dim)."""
    if can_use_norm(x, weight):
        return liger.rms_norm(x, weight, eps)
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return weight * (x - mean(x)) / sqrt(var(x) + eps) + bias. x: (..., dim)."""
    if weight is not None and bias is not None and can_use_norm(x, weight, bias):
        return liger.layer_norm(x, weight, bias, eps)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def dyt(x: Tensor, alpha: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return weight * tanh(alpha * x) + bias. x: (..., dim), alpha: a scalar."""
    if weight is not None and can_use_norm(x, alpha, weight, bias):
        return liger.dyt(x, alpha, weight, bias)
    y = torch.tanh(alpha * x)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
