"""Dropout of a branch, add and norm in one go.

s = scale * x + drop(f)
y = weight * (s - mean(s)) / sqrt(mean((s - mean(s)) ** 2) + eps) + bias        LayerNorm
y = weight * s / sqrt(mean(s ** 2) + eps) + bias                                RMSNorm

x, f: (..., dim) stream and branch, of one shape
scale: of the skip, a number or (dim)
rate: share of the branch that is dropped
Statistics are those of s as rounded to its type, in float32 or better.

On a CPU every step for itself reads and writes all of its tensors, and torch's dropout takes longer
than all others together. The native library reads x and f once and draws again in the backward
instead of keeping a mask. Where it cannot go (another device or type, few features, somebody who
records operations) `formula.py` computes the same with the same draws.
"""

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.kernels import library
from addnorm.kernels.add_norm import autograd
from addnorm.kernels.add_norm.native import AddNormOptions, AddNormTensors
from addnorm.kernels.add_norm.reference import NormParams, add_norm_reference
from addnorm.kernels.dropout import sample_dropout_factors
from addnorm.kernels.dropout_rng import sample_seed

MIN_NATIVE_FEATURES, MIN_NATIVE_FEATURES_BARE, MIN_NATIVE_FEATURES_HALF = 1 << 14, 1 << 19, 1 << 15
"""Features from which on the native library is taken: with dropout or RMSNorm; for LayerNorm
without dropout, where torch has less to do before its kernel begins; for that in bfloat16 (`addnorm
bench kernels`)."""


def add_norm(
    x: Tensor, f: Tensor, params: NormParams, *, scale: float | Tensor = 1.0, rate: float = 0.0
) -> Tensor:
    """y alone, as Post-LN, DeepNorm and Admin want it."""
    return _dispatch(x, f, params, scale, rate, return_sum=False)[1]


def add_norm_with_sum(
    x: Tensor, f: Tensor, params: NormParams, *, scale: float | Tensor = 1.0, rate: float = 0.0
) -> tuple[Tensor, Tensor]:
    """s and y, as Pre-LN wants them: the stream, and what the next sub-layer reads."""
    return _dispatch(x, f, params, scale, rate, return_sum=True)


def native_is_faster(params: NormParams, rate: float, x: Tensor, *others: Tensor | None) -> bool:
    """Whether the native library takes these tensors and is faster than torch with them."""
    bare = MIN_NATIVE_FEATURES_BARE if x.dtype == torch.float32 else MIN_NATIVE_FEATURES_HALF
    least = MIN_NATIVE_FEATURES if params.rms or rate else bare
    return library.can_use_native(least, x, params.weight, params.bias, *others)


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
        given = AddNormTensors(weight, bias, scales, sample_seed() if rate else None)
        return autograd.add_norm(
            x, f, given, AddNormOptions(rms, eps, number, rate), return_sum=return_sum
        )
    return add_norm_reference(
        x, f, params, scale=scale, factor=sample_dropout_factors(f, rate) if rate else None
    )


def _check(x: Tensor, f: Tensor, params: NormParams, scale: float | Tensor, rate: float) -> None:
    shape = x.shape
    if shape != f.shape or not shape:
        raise UserError(
            f"stream and branch have shapes {tuple(shape)} and {tuple(f.shape)}; wanted one shape"
            ", (..., dim)"
        )
    if not 0 <= rate < 1:
        raise UserError(f"rate is a share from 0 to below 1, got {rate!r}")
    dim = shape[-1:]
    for name, each in (("gain", params.weight), ("bias", params.bias), ("scale", scale)):
        if isinstance(each, Tensor) and each.shape != dim:
            raise UserError(
                f"the {name} has shape {tuple(each.shape)}, wanted one entry a feature, "
                f"{tuple(dim)}"
            )
