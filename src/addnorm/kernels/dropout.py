"""Dropout that saves no mask and is fast on a CPU.

torch draws one random number per feature and converts it to a float. On a CPU that takes longer
than the feed-forward layer of a narrow model. `Dropout` takes one number of torch's generator per
call, derives all draws from it (`dropout_rng`) and derives them again in the backward.

Which implementation runs, for a module in training mode with 0 < p < 1:

    another device, a compiled graph, inplace=True     torch's own dropout
    float32 or bfloat16, MIN_NATIVE_FEATURES or more   the native library
    otherwise                                          `dropout_rng.dropout_factors`

The last two give the same bits. The gradient has the factors of the forward, although no mask was
saved:

    >>> _ = torch.manual_seed(0)
    >>> x = torch.ones(8, requires_grad=True)
    >>> y = Dropout(0.5)(x)
    >>> y.tolist()
    [2.0, 2.0, 0.0, 2.0, 0.0, 2.0, 0.0, 2.0]
    >>> y.sum().backward()
    >>> torch.equal(x.grad, y)
    True
"""

from typing import Any

import torch
from torch import Tensor, nn

from addnorm.kernels import library
from addnorm.kernels.add_norm import native
from addnorm.kernels.dropout_rng import dropout_factors, sample_dropout_factors, sample_seed

MIN_NATIVE_FEATURES = 1 << 12
"""Elements of the input from which the native library is faster (`addnorm bench kernels`)."""


class Dropout(nn.Dropout):
    """Dropout with recomputed draws; a replacement for `torch.nn.Dropout`.

    y = x * keep / (1 - rate),    keep ~ Bernoulli(1 - rate), one draw per feature

    rate: the argument `p`

    Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting, 2014.
    """

    def forward(self, x: Tensor) -> Tensor:
        handled = x.device.type == "cpu" and not torch.compiler.is_compiling() and not self.inplace
        if not handled or not self.training or self.p in (0.0, 1.0):
            return super().forward(x)
        if (x.dtype, x.dtype) in library.DTYPE_CODES and library.can_use_native(
            MIN_NATIVE_FEATURES, x
        ):
            return _NativeDropout.apply(x, sample_seed(), self.p)  # type: ignore[no-untyped-call]
        return (x * sample_dropout_factors(x, self.p)).to(x.dtype)


class _NativeDropout(torch.autograd.Function):
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
