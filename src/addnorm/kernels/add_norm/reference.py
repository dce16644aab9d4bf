"""Dropout, add and norm in plain torch: the definition that the native library is tested
against."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class NormParams(NamedTuple):
    """Norm as the kernels see it; a norm that has no such form cannot be fused."""

    rms: bool
    """RMSNorm, not LayerNorm."""
    weight: Tensor | None
    """(dim) gain."""
    bias: Tensor | None
    """(dim)"""
    eps: float


def add_norm_reference(
    x: Tensor, f: Tensor, params: NormParams, *, scale: float | Tensor, factor: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return s = scale * x + factor * f, rounded once to the dtype of the stream, and its norm.

    Args:
        x: (..., dim) stream
        f: (..., dim) branch
        params: the norm
        scale: of the skip, a number or (dim)
        factor: (..., dim) dropout factors, 0 or 1 / (1 - rate); None for no dropout
    """
    dtype = torch.promote_types(x.dtype, f.dtype)
    if isinstance(scale, Tensor) or scale != 1:
        x = scale * to_float32(x)
    s = (x + (f if factor is None else factor * f)).to(dtype)
    return s, normalize(s, params)


def normalize(s: Tensor, params: NormParams) -> Tensor:
    """Return the norm of s in the dtype of s; the arithmetic is in float32 or better."""
    h, shape = to_float32(s), s.shape[-1:]
    weight, bias = (None if each is None else each.to(h.dtype) for each in params[1:3])
    if params.rms:
        y = F.rms_norm(h, shape, weight, params.eps)
        return (y if bias is None else y + bias).to(s.dtype)
    return F.layer_norm(h, shape, weight, bias, params.eps).to(s.dtype)


def to_float32(x: Tensor) -> Tensor:
    """Convert to float32; float64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
