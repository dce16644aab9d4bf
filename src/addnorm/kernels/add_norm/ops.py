"""Fused dropout, residual add and norm.

s = scale * x + dropout(f)
y = weight * (s - mean(s)) / sqrt(mean((s - mean(s)) ** 2) + eps) + bias        LayerNorm
y = weight * s / sqrt(mean(s ** 2) + eps) + bias                                RMSNorm

x, f: (..., dim) stream and branch, of one shape
scale: of the skip, a number or (dim)
rate: dropout rate of the branch

The statistics are those of s as rounded to its dtype, in float32 or better.

As separate operations, every step reads and writes whole tensors, and on a CPU torch's dropout
takes longer than all other steps together. The native library reads x and f once. Its backward
recomputes the dropout draws from a seed instead of reading a mask.

Which implementation runs:

    float32, bfloat16, or a bfloat16 branch on a float32 stream, on a CPU, large enough
        (MIN_NATIVE_FEATURES...), without tracing or modes        `autograd`, the native library
    RMSNorm of a plain sum without dropout, on a GPU, eager,
        with the optional package Liger-Kernel                    `liger`
    anything else                                                 `reference`, with the same draws

>>> x, f = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]])
>>> add_norm_with_sum(x, f, NormParams(rms=True, weight=None, bias=None, eps=0.0))
(tensor([[1., 3.]]), tensor([[0.4472, 1.3416]]))
"""

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.kernels import library, liger
from addnorm.kernels.add_norm import autograd
from addnorm.kernels.add_norm.native import AddNormOptions, AddNormTensors
from addnorm.kernels.add_norm.reference import NormParams, add_norm_reference
from addnorm.kernels.dropout_rng import sample_dropout_factors, sample_seed

MIN_NATIVE_FEATURES, MIN_NATIVE_FEATURES_BARE, MIN_NATIVE_FEATURES_HALF = 1 << 14, 1 << 19, 1 << 15
"""Elements of x from which the native library is faster (`addnorm bench kernels`): with dropout or
RMSNorm; for LayerNorm without dropout, where torch has little overhead; for the same in
bfloat16."""


def add_norm(
    x: Tensor, f: Tensor, params: NormParams, *, scale: float | Tensor = 1.0, rate: float = 0.0
) -> Tensor:
    """Return y = N(scale * x + dropout(f)) without the sum (Post-LN, DeepNorm, Admin)."""
    return _dispatch(x, f, params, scale, rate, return_sum=False)[1]


def add_norm_with_sum(
    x: Tensor, f: Tensor, params: NormParams, *, scale: float | Tensor = 1.0, rate: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the sum s, which is the new stream, and its norm y (Pre-LN)."""
    return _dispatch(x, f, params, scale, rate, return_sum=True)


def has_fused_kernel(params: NormParams, rate: float, scale: float | Tensor, x: Tensor) -> bool:
    """Return whether one kernel computes the sum and its norm: of the native library or Liger."""
    return native_is_faster(params, rate, x) or _can_use_liger(params, rate, scale, x)


def native_is_faster(params: NormParams, rate: float, x: Tensor, *others: Tensor | None) -> bool:
    """Return whether the native library may take these tensors and is faster than torch."""
    bare = MIN_NATIVE_FEATURES_BARE if x.dtype == torch.float32 else MIN_NATIVE_FEATURES_HALF
    min_features = MIN_NATIVE_FEATURES if params.rms or rate else bare
    return library.can_use_native(min_features, x, params.weight, params.bias, *others)


def _dispatch(
    x: Tensor,
    f: Tensor,
    params: NormParams,
    scale: float | Tensor,
    rate: float,
    *,
    return_sum: bool,
) -> tuple[Tensor, Tensor]:
    _check(x, f, params, scale, rate)
    scales, number = (scale, 1.0) if isinstance(scale, Tensor) else (None, float(scale))
    rms, weight, bias, eps = params
    if (x.dtype, f.dtype) in library.DTYPE_CODES and native_is_faster(params, rate, x, f, scales):
        tensors = AddNormTensors(weight, bias, scales, sample_seed() if rate else None)
        return autograd.add_norm(
            x, f, tensors, AddNormOptions(rms, eps, number, rate), return_sum=return_sum
        )
    if _can_use_liger(params, rate, scale, x, f):
        assert weight is not None
        s, y = liger.add_rms_norm(x, f, weight.to(x.dtype), eps)
        return s, y if bias is None else y + bias
    return add_norm_reference(
        x, f, params, scale=scale, factor=sample_dropout_factors(f, rate) if rate else None
    )


def _can_use_liger(
    params: NormParams, rate: float, scale: float | Tensor, x: Tensor, *others: Tensor | None
) -> bool:
    """Return whether Liger-Kernel has this operator: RMSNorm of a plain sum without dropout."""
    if not params.rms or params.weight is None or rate or isinstance(scale, Tensor) or scale != 1:
        return False
    return liger.can_use_norm(x, params.weight, params.bias, *others)


def _check(x: Tensor, f: Tensor, params: NormParams, scale: float | Tensor, rate: float) -> None:
    shape = x.shape
    if shape != f.shape or not shape:
        raise UserError(
            "stream and branch: expected tensors of one shape (..., dim), got "
            f"{tuple(shape)} and {tuple(f.shape)}"
        )
    if not 0 <= rate < 1:
        raise UserError(f"rate: expected a number from 0 to below 1, got {rate!r}")
    dim = shape[-1:]
    for name, each in (("gain", params.weight), ("bias", params.bias), ("scale", scale)):
        if isinstance(each, Tensor) and each.shape != dim:
            raise UserError(
                f"{name}: expected shape {tuple(dim)}, one entry per feature, "
                f"got {tuple(each.shape)}"
            )
