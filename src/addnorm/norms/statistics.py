"""Statistics shared by several norms, over the features of a token or over tokens."""

from typing import Literal

import torch
from torch import Tensor

from addnorm.norms.base import statistics_dtype

VarMode = Literal["biased", "unbiased"]
EpsMode = Literal["inside", "outside"]


def root_mean_square(
    x: Tensor, *, eps: float, eps_mode: EpsMode, count: int | None = None
) -> Tensor:
    """Return sqrt(sum(x ** 2) / count + eps), (..., 1), or add eps after the root.

    count: divisor; the number of features if None

    >>> root_mean_square(torch.tensor([3.0, 4.0]), eps=0.5, eps_mode="outside", count=1)
    tensor([5.5000])
    """
    count = x.shape[-1] if count is None else count
    if eps_mode == "inside":
        return (x.square().sum(-1, keepdim=True) / count + eps).sqrt()
    # The gradient of vector_norm is 0 at a token of zeros; that of sqrt(0) is not defined.
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True) / count**0.5 + eps


def standard_deviation(centered: Tensor, *, var: VarMode, eps: float, eps_mode: EpsMode) -> Tensor:
    """Return the standard deviation of centered tokens, (..., 1)."""
    dim = centered.shape[-1]
    count = max(dim - 1, 1) if var == "unbiased" else dim
    return root_mean_square(centered, eps=eps, eps_mode=eps_mode, count=count)


def l2_normalize(x: Tensor, dim: int = -1, eps: float = 1e-12) -> Tensor:
    """Return x / max(|x|, eps); a zero vector stays zero and gets no gradient.

    Its gradient would be 1 / eps and would be amplified by every norm. Lengths are computed in
    float32 or float64: in float16 a square overflows at 256 and eps is rounded to zero.
    """
    wide = x.to(statistics_dtype(x))
    length = torch.linalg.vector_norm(wide, dim=dim, keepdim=True)
    return torch.where(length > 0, wide / length.clamp_min(eps), 0.0).to(x.dtype)


def mask_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Set padding to zero."""
    return x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0)


def token_count(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the number of valid tokens of x, (..., L, dim), as (..., 1, 1)."""
    if mask is None:
        return x.new_full((1, 1), x.shape[-2])
    return mask.sum(-1)[..., None, None].to(x.dtype)


def token_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over valid tokens, (..., 1, dim); zero if no token is valid.

    x: (..., L, dim), zero at padding
    """
    return x.sum(-2, keepdim=True) / token_count(x, mask).clamp_min(1)
