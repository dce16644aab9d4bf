"""What the native library makes of tensors: no gradients, no choice, no definition here."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from addnorm.kernels import library
from addnorm.kernels.dropout_rng import drop_threshold, matrix_shape


class AddNormOptions(NamedTuple):
    """All of dropout + add + norm that is no tensor."""

    rms: bool
    eps: float
    scale: float
    """Of the skip, where it is one number."""
    rate: float


class AddNormTensors(NamedTuple):
    """Tensors besides stream and branch."""

    weight: Tensor | None
    bias: Tensor | None
    scales: Tensor | None
    """Of the skip, one a feature."""
    seed: Tensor | None


class SavedTensors(NamedTuple):
    """What the backward wants of the forward."""

    s: Tensor
    statistics: Tensor
    """(2, rows): mean and 1 / deviation of every row."""
    x: Tensor | None
    """Only where `scales` may want a gradient."""


def forward(
    x: Tensor, f: Tensor, tensors: AddNormTensors, options: AddNormOptions, *, return_sum: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """y, s and the statistics; None for the last two without `keep`."""
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
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of stream, branch, gain, bias and scales from those of y and s.

    dtype: of the branch. None where not wanted, and the branch's where it is that of the stream.
    """
    s, statistics, x = saved
    dy, ds, tensors = (
        dy.contiguous(),
        None if ds is None else ds.contiguous(),
        _to_dense_float32(tensors),
    )
    rows, dim = matrix_shape(s)
    apart = wanted[1] and not (wanted[0] and shares_gradient(options, tensors, s.dtype, dtype))
    dx = torch.empty_like(s) if wanted[0] else None
    df = torch.empty_like(s, dtype=dtype) if apart else None
    weight, bias, scales, _ = tensors
    dw = torch.empty_like(weight) if weight is not None and wanted[2] else None
    db = torch.empty_like(bias) if bias is not None and wanted[3] else None
    da = torch.empty_like(scales) if scales is not None and wanted[4] else None
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
    """Whether stream and branch have one gradient."""
    return not options.rate and options.scale == 1 and tensors.scales is None and stream == branch


def dropout_native(x: Tensor, seed: Tensor, rate: float) -> Tensor:
    """x times the factors of `draws.factors`."""
    x = x.contiguous()
    y = torch.empty_like(x)
    given, how = AddNormTensors(None, None, None, seed), AddNormOptions(False, 0.0, 1.0, rate)
    library.call_rows(
        "dropout",
        *_common_fields(*matrix_shape(x), library.DTYPE_CODES[x.dtype, x.dtype], given, how),
        *(0, x.data_ptr(), 0, y.data_ptr(), 0, 0),
        *(0, 0, 0, 0, 0, 0, 0, 0),
    )
    return y


def _common_fields(
    rows: int, dim: int, dtype_code: int, tensors: AddNormTensors, options: AddNormOptions
) -> tuple[float, ...]:
    """What all are told: the first fields of `struct addnorm_rows`, up to x."""
    dropped, kept = drop_threshold(options.rate)
    weight, bias, scales, seed = tensors
    vectors = map(library.data_ptr_or_null, (seed, scales, weight, bias))
    return (rows, dim, dtype_code, options.rms, dropped, kept, options.scale, options.eps, *vectors)


def _to_dense_float32(tensors: AddNormTensors) -> AddNormTensors:
    """In float32 and dense, as the library wants them."""
    weight, bias, scales, seed = tensors
    if _is_dense_float32(weight) and _is_dense_float32(bias) and _is_dense_float32(scales):
        return tensors
    weight, bias, scales = (
        None if each is None else each.detach().float().contiguous() for each in tensors[:3]
    )
    return AddNormTensors(weight, bias, scales, seed)


def _is_dense_float32(vector: Tensor | None) -> bool:
    return vector is None or (vector.dtype == torch.float32 and vector.is_contiguous())
