"""Dropout that does not cost more than the layer it stands behind."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.kernels import library
from addnorm.kernels.add_norm import native
from addnorm.kernels.dropout_rng import dropout_factors, sample_seed

MIN_NATIVE_FEATURES = 1 << 12
"""Features from which on the native library is faster (`addnorm bench kernels`)."""


class Dropout(nn.Dropout):
    """A share of the features set to zero in training, the others scaled so that the mean stays.

    y = x * keep / (1 - rate),    keep ~ Bernoulli(1 - rate), one draw a feature

    rate: `p`

    torch draws one number of its generator a feature and turns it into a float; on a CPU that takes
    longer than the feed-forward of a narrow model. Here the draws of `draws.py` take one number of
    the generator in all, and the native library makes them again in the backward instead of keeping
    them. Elsewhere, and where a graph is compiled, it is torch's own.

    Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting, 2014.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x, some of it zero while training."""
        own = x.device.type == "cpu" and not torch.compiler.is_compiling() and not self.inplace
        if not own or not self.training or self.p in (0.0, 1.0):
            return super().forward(x)
        if (x.dtype, x.dtype) in library.DTYPE_CODES and library.can_use_native(
            MIN_NATIVE_FEATURES, x
        ):
            return _NativeDropout.apply(x, sample_seed(), self.p)  # type: ignore[no-untyped-call]
        return (x * sample_dropout_factors(x, self.p)).to(x.dtype)


def sample_dropout_factors(x: Tensor, rate: float) -> Tensor:
    """What x is multiplied with: 0, or 1 / (1 - rate), for each of its features; in float32 at
    least.
    """
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        return dropout_factors(x, sample_seed(), rate)
    return F.dropout(torch.ones_like(x, dtype=torch.promote_types(x.dtype, torch.float32)), rate)


class _NativeDropout(torch.autograd.Function):
    """Dropout by the native library."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: Tensor, rate: float) -> Tensor:
        ctx.save_for_backward(seed)
        ctx.rate = rate
        return native.dropout_native(x, seed, rate)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (seed,) = ctx.saved_tensors
        (dy,) = grads
        if library.needs_differentiable_backward(dy):
            return (dy * dropout_factors(dy, seed, ctx.rate)).to(dy.dtype), None, None
        return native.dropout_native(dy, seed, ctx.rate), None, None
