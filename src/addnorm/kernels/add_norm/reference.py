"""Dropout of a branch, add and norm: the definition, in plain torch."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class NormParams(NamedTuple):
    """What the kernels have to know of a norm."""

    rms: bool
    """RMSNorm, not LayerNorm."""
    weight: Tensor | None
    """(dim), or no gain."""
    bias: Tensor | None
    """(dim), or none."""
    eps: float


def add_norm_reference(
    x: Tensor, f: Tensor, params: NormParams, *, scale: float | Tensor, factor: Tensor | None
) -> tuple[Tensor, Tensor]:
    """s = scale * x + factor * f, rounded once, and its norm.

    factor: 0 or 1 / (1 - rate) for each feature of the branch, if some are dropped
    """
    kind = torch.promote_types(x.dtype, f.dtype)
    if isinstance(scale, Tensor) or scale != 1:
        x = scale * to_float32(x)
    s = (x + (f if factor is None else factor * f)).to(kind)
    return s, normalize(s, params)


def normalize(s: Tensor, params: NormParams) -> Tensor:
    """The norm alone, its statistics in float32 or better; same type out."""
    h, shape = to_float32(s), s.shape[-1:]
    weight, bias = (None if each is None else each.to(h.dtype) for each in params[1:3])
    if params.rms:
        y = F.rms_norm(h, shape, weight, params.eps)
        return (y if bias is None else y + bias).to(s.dtype)
    return F.layer_norm(h, shape, weight, bias, params.eps).to(s.dtype)


def to_float32(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
