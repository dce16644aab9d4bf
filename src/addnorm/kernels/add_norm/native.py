"""Calls of the native library for dropout, add and norm.

s = scale * x + dropout(f)
y = weight * (s - mean(s)) / sqrt(var(s) + eps) + bias      without mean and bias if rms

x, f, s, y: (rows, dim); leading axes are flattened

One pass over memory computes s, its statistics and y, row by row. The backward needs only s and two
numbers per row. Example with one row of four features, without gain, bias and dropout, eps = 0:

    x           [[0, 1, 0, 1]]
    f           [[1, 4, 1, 4]]
    s           [[1, 5, 1, 5]]
    statistics  [[3], [0.5]]         mean and 1 / sqrt(var + eps)
    y           [[-1, 1, -1, 1]]

The functions here allocate the outputs and pack `struct addnorm_rows`. They record no gradients and
check nothing: `ops` chooses, `autograd` differentiates.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from addnorm.kernels import library
from addnorm.kernels.dropout_rng import drop_threshold, matrix_shape


class AddNormOptions(NamedTuple):
    """Numbers of a fused dropout, add and norm."""

    rms: bool
    eps: float
    scale: float
    """Scale of the skip; 1 if there are `scales`."""
    rate: float


class AddNormTensors(NamedTuple):
    """Tensors of a fused dropout, add and norm besides stream and branch."""

    weight: Tensor | None
    bias: Tensor | None
    scales: Tensor | None
    """(dim) scale of the skip per feature."""
    seed: Tensor | None
    """Scalar int64; None for no dropout."""


class SavedTensors(NamedTuple):
    """Tensors that the backward needs from the forward."""

    s: Tensor
    statistics: Tensor
    """(2, rows) mean and 1 / sqrt(variance + eps) of every row."""
    x: Tensor | None
    """Stream; only if there are `scales`, whose gradient needs it."""


def forward(
    x: Tensor, f: Tensor, tensors: AddNormTensors, options: AddNormOptions, *, return_sum: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return y, s and the statistics; without `return_sum` the last two are None."""
    x, f, tensors = x.contiguous(), f.contiguous(), _to_dense_float32(tensors)
    rows, dim = matrix_shape(x)
    y = torch.empty_like(x)
    at_s = mean = rstd = 0
    s = statistics = None
    if return_sum:
        s, statistics = torch.empty_like(x), torch.empty((2, rows), dtype=torch.float32)
        at_s, mean = s.data_ptr(), statistics.data_ptr()
        rstd = mean + 4 * rows
    library.call_rows(
        "add_norm_forward",
        *_common_fields(rows, dim, library.DTYPE_CODES[x.dtype, f.dtype], tensors, options),
        *(x.data_ptr(), f.data_ptr(), at_s, y.data_ptr(), mean, rstd, 0, 0, 0, 0, 0, 0, 0, 0),
    )
    return y, s, statistics


def backward(
    dy: Tensor,
    ds: Tensor | None,
    saved: SavedTensors,
    tensors: AddNormTensors,
    options: AddNormOptions,
    *,
    dtype: torch.dtype,
    requires_grad: Sequence[bool],
) -> list[Tensor | None]:
    """Return the gradients of stream, branch, gain, bias and scales.

    Args:
        dy: gradient of y
        ds: gradient of s
        saved: from the forward
        tensors: as in the forward
        options: as in the forward
        dtype: dtype of the branch
        requires_grad: which of the five gradients to compute

    Returns:
        The five gradients; None for those that are not required. That of the branch is also None if
        it equals that of the stream (`shares_gradient`), which saves writing it.
    """
    s, statistics, x = saved
    dy, ds, tensors = (
        dy.contiguous(),
        None if ds is None else ds.contiguous(),
        _to_dense_float32(tensors),
    )
    rows, dim = matrix_shape(s)
    same = requires_grad[0] and shares_gradient(options, tensors, s.dtype, dtype)
    dx = torch.empty_like(s) if requires_grad[0] else None
    df = torch.empty_like(s, dtype=dtype) if requires_grad[1] and not same else None
    weight, bias, scales, _ = tensors
    dw = torch.empty_like(weight) if weight is not None and requires_grad[2] else None
    db = torch.empty_like(bias) if bias is not None and requires_grad[3] else None
    da = torch.empty_like(scales) if scales is not None and requires_grad[4] else None
    mean = statistics.data_ptr()
    library.call_rows(
        "add_norm_backward",
        *_common_fields(rows, dim, library.DTYPE_CODES[s.dtype, dtype], tensors, options),
        *(library.data_ptr_or_null(x), 0, s.data_ptr(), 0, mean, mean + 4 * rows),
        *(*map(library.data_ptr_or_null, (dy, ds, dx, df, dw, db, da)), 0),
    )
    return [dx, df, dw, db, da]


def shares_gradient(
    options: AddNormOptions, tensors: AddNormTensors, stream: torch.dtype, branch: torch.dtype
) -> bool:
    """Return whether the gradients of stream and branch are equal."""
    return not options.rate and options.scale == 1 and tensors.scales is None and stream == branch


def dropout_native(x: Tensor, seed: Tensor, rate: float) -> Tensor:
    """Return x * dropout_factors(x, seed, rate), in the dtype of x."""
    x = x.contiguous()
    y = torch.empty_like(x)
    tensors = AddNormTensors(None, None, None, seed)
    options = AddNormOptions(rms=False, eps=0.0, scale=1.0, rate=rate)
    library.call_rows(
        "dropout",
        *_common_fields(*matrix_shape(x), library.DTYPE_CODES[x.dtype, x.dtype], tensors, options),
        *(0, x.data_ptr(), 0, y.data_ptr(), 0, 0),
        *(0, 0, 0, 0, 0, 0, 0, 0),
    )
    return y


def _common_fields(
    rows: int, dim: int, dtype_code: int, tensors: AddNormTensors, options: AddNormOptions
) -> tuple[float, ...]:
    """Return the fields of `struct addnorm_rows` before x."""
    threshold, kept_factor = drop_threshold(options.rate)
    weight, bias, scales, seed = tensors
    numbers = (threshold, kept_factor, options.scale, options.eps)
    pointers = map(library.data_ptr_or_null, (seed, scales, weight, bias))
    return (rows, dim, dtype_code, options.rms, *numbers, *pointers)


def _to_dense_float32(tensors: AddNormTensors) -> AddNormTensors:
    weight, bias, scales, seed = tensors
    if _is_dense_float32(weight) and _is_dense_float32(bias) and _is_dense_float32(scales):
        return tensors
    weight, bias, scales = (
        None if each is None else each.detach().float().contiguous() for each in tensors[:3]
    )
    return AddNormTensors(weight, bias, scales, seed)


def _is_dense_float32(vector: Tensor | None) -> bool:
    return vector is None or (vector.dtype == torch.float32 and vector.is_contiguous())
