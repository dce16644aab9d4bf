"""What the native library makes of tensors: no gradients, no choice, no definition here."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from addnorm.kernels import library
from addnorm.kernels.dropout_rng import rows_of, threshold


class How(NamedTuple):
    """All of dropout + add + norm that is no tensor."""

    rms: bool
    eps: float
    scale: float
    """Of the skip, where it is one number."""
    rate: float


class Given(NamedTuple):
    """Tensors besides stream and branch."""

    weight: Tensor | None
    bias: Tensor | None
    scales: Tensor | None
    """Of the skip, one a feature."""
    seed: Tensor | None


class Saved(NamedTuple):
    """What the backward wants of the forward."""

    s: Tensor
    statistics: Tensor
    """(2, rows): mean and 1 / deviation of every row."""
    x: Tensor | None
    """Only where `scales` may want a gradient."""


def forward(
    x: Tensor, f: Tensor, given: Given, how: How, *, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """y, s and the statistics; None for the last two without `keep`."""
    x, f, given = x.contiguous(), f.contiguous(), _vectors(given)
    rows, dim = rows_of(x)
    y = torch.empty_like(x)
    at_s = mean = rstd = 0
    s = statistics = None
    if keep:
        s, statistics = torch.empty_like(x), torch.empty((2, rows), dtype=torch.float32)
        at_s, mean = s.data_ptr(), statistics.data_ptr()
        rstd = mean + 4 * rows
    library.call(
        "forward",
        *_common(rows, dim, library.TYPES[x.dtype, f.dtype], given, how),
        *(x.data_ptr(), f.data_ptr(), at_s, y.data_ptr(), mean, rstd, 0, 0, 0, 0, 0, 0, 0, 0),
    )
    return y, s, statistics


def backward(
    dy: Tensor,
    ds: Tensor | None,
    saved: Saved,
    given: Given,
    how: How,
    *,
    dtype: torch.dtype,
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of stream, branch, gain, bias and scales from those of y and s.

    dtype: of the branch. None where not wanted, and the branch's where it is that of the stream.
    """
    s, statistics, x = saved
    dy, ds, given = dy.contiguous(), None if ds is None else ds.contiguous(), _vectors(given)
    rows, dim = rows_of(s)
    apart = wanted[1] and not (wanted[0] and shared(how, given, s.dtype, dtype))
    dx = torch.empty_like(s) if wanted[0] else None
    df = torch.empty_like(s, dtype=dtype) if apart else None
    weight, bias, scales, _ = given
    dw = torch.empty_like(weight) if weight is not None and wanted[2] else None
    db = torch.empty_like(bias) if bias is not None and wanted[3] else None
    da = torch.empty_like(scales) if scales is not None and wanted[4] else None
    mean = statistics.data_ptr()
    library.call(
        "backward",
        *_common(rows, dim, library.TYPES[s.dtype, dtype], given, how),
        *(library.address(x), 0, s.data_ptr(), 0, mean, mean + 4 * rows),
        *(*map(library.address, (dy, ds, dx, df, dw, db, da)), 0),
    )
    return [dx, df, dw, db, da]


def shared(how: How, given: Given, stream: torch.dtype, branch: torch.dtype) -> bool:
    """Whether stream and branch have one gradient."""
    return not how.rate and how.scale == 1 and given.scales is None and stream == branch


def drop(x: Tensor, seed: Tensor, rate: float) -> Tensor:
    """x times the factors of `draws.factors`."""
    x = x.contiguous()
    y = torch.empty_like(x)
    given, how = Given(None, None, None, seed), How(False, 0.0, 1.0, rate)
    library.call(
        "drop",
        *_common(*rows_of(x), library.TYPES[x.dtype, x.dtype], given, how),
        *(0, x.data_ptr(), 0, y.data_ptr(), 0, 0),
        *(0, 0, 0, 0, 0, 0, 0, 0),
    )
    return y


def _common(rows: int, dim: int, types: int, given: Given, how: How) -> tuple[float, ...]:
    """What all are told: the first fields of `struct addnorm_rows`, up to x."""
    dropped, kept = threshold(how.rate)
    weight, bias, scales, seed = given
    vectors = map(library.address, (seed, scales, weight, bias))
    return (rows, dim, types, how.rms, dropped, kept, how.scale, how.eps, *vectors)


def _vectors(given: Given) -> Given:
    """In float32 and dense, as the library wants them."""
    weight, bias, scales, seed = given
    if _ready(weight) and _ready(bias) and _ready(scales):
        return given
    weight, bias, scales = (
        None if each is None else each.detach().float().contiguous() for each in given[:3]
    )
    return Given(weight, bias, scales, seed)


def _ready(vector: Tensor | None) -> bool:
    return vector is None or (vector.dtype == torch.float32 and vector.is_contiguous())
