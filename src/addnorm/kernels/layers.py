"""Linear layers with gradients: several of one input, and two with a rectifier between them.

y_i = x W_i^T + b_i                          dx = sum over i of dy_i W_i
y = relu(x U^T + a) D^T + b                  dh = dy D where h > 0,    dx = dh U

x: (..., depth)
h: relu(x U^T + a)

One function of autograd each, and the native library: biases and rectifiers are part of a product,
and gradients are summed where they are made. Where it cannot go (another device or type, few
features, somebody who looks at a layer or records operations) the layers are called.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.kernels import native
from addnorm.kernels.linear import DENSE, FEW, linear, plain, product, suits, sums

Gradients = tuple[Tensor | None, ...]


def project(layer: nn.Linear, x: Tensor) -> Tensor:
    """What a layer makes of x."""
    if torch.is_grad_enabled() or not plain(layer):  # a function of its own would cost more
        made: Tensor = layer(x)
        return made
    return linear(x, layer.weight, layer.bias)


def projections(layers: Sequence[nn.Linear], x: Tensor) -> Sequence[Tensor]:
    """What each of several layers makes of x."""
    if not (_suits(x, layers) and all(layer.weight.shape[1] == x.shape[-1] for layer in layers)):
        return [project(layer, x) for layer in layers]
    given = [each for layer in layers for each in (layer.weight, layer.bias)]
    return _Projections.apply(x.contiguous(), *given)  # type: ignore[no-untyped-call]


def rectified(up: nn.Linear, down: nn.Linear, x: Tensor) -> Tensor:
    """down(relu(up(x)))"""
    if not (
        _suits(x, (up, down))
        and up.weight.shape[1] == x.shape[-1]
        and up.weight.shape[0] == down.weight.shape[1]
    ):
        return project(down, torch.relu(project(up, x)))
    given = (up.weight, up.bias, down.weight, down.bias)
    return _Rectified.apply(x.contiguous(), *given)  # type: ignore[no-untyped-call]


def _suits(x: Tensor, layers: Sequence[nn.Linear]) -> bool:
    """Whether the native library takes these, forward and backward, and is faster."""
    if not (torch.is_grad_enabled() and native.eager()) or x.numel() <= FEW * x.shape[-1]:
        return False
    return (
        all(map(plain, layers))
        and not any(size % DENSE for layer in layers for size in layer.weight.shape)
        and all(
            layer.bias is None or layer.bias.shape == layer.weight.shape[:1] for layer in layers
        )
        and suits(x, *(each for layer in layers for each in (layer.weight, layer.bias)))
    )


class _Projections(torch.autograd.Function):
    """y_i = x W_i^T + b_i"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Tensor | None) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        weights = given[::2]
        ctx.save_for_backward(x, *weights)
        pairs = zip(weights, given[1::2], strict=True)
        return tuple(product(x, weight, bias) for weight, bias in pairs if weight is not None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        x, *weights = (each.contiguous() for each in ctx.saved_tensors)  # hooks may have moved them
        dx: Tensor | None = None
        made: list[Tensor | None] = []
        for n, (dy, weight) in enumerate(zip(grads, weights, strict=True)):
            dy = None if dy is None else dy.contiguous()
            if dy is not None and ctx.needs_input_grad[0]:
                dx = _through(dy, weight, to=dx)
            made += _sums(dy, x, ctx.needs_input_grad[1 + 2 * n : 3 + 2 * n])
        return (dx, *made)


class _Rectified(torch.autograd.Function):
    """y = relu(x U^T + a) D^T + b"""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, up: Tensor, a: Tensor | None, down: Tensor, b: Tensor | None
    ) -> Tensor:
        h = product(x, up, a, relu=True)
        ctx.save_for_backward(x, h, up, down, a)
        return product(h, down, b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        x, h, up, down = (each.contiguous() for each in ctx.saved_tensors[:4])
        dy, wanted = grads[0].contiguous(), ctx.needs_input_grad
        if torch.is_grad_enabled():  # h is to know where it comes from
            h = torch.relu(F.linear(x, up, ctx.saved_tensors[4]))
        dh = _through(dy, down, gate=h)
        dx = _through(dh, up) if wanted[0] else None
        return (dx, *_sums(dh, x, wanted[1:3]), *_sums(dy, h, wanted[3:5]))


def _through(
    dy: Tensor, weight: Tensor, *, gate: Tensor | None = None, to: Tensor | None = None
) -> Tensor:
    """dy W, added to `to`; in plain torch where gradients of gradients are wanted."""
    if not native.recorded(dy):
        return product(dy, weight, back=True, gate=gate, to=to)
    dx = dy @ weight
    dx = dx if gate is None else torch.where(gate <= 0, 0.0, dx)
    return dx if to is None else to + dx


def _sums(dy: Tensor | None, x: Tensor, wanted: Sequence[bool]) -> Gradients:
    """Gradients of a weight and its bias."""
    if dy is None:
        return None, None
    if not native.recorded(dy):
        return sums(dy, x, wanted)
    rows = dy.reshape(-1, dy.shape[-1])
    weight = rows.t() @ x.reshape(-1, x.shape[-1]) if wanted[0] else None
    return weight, rows.sum(0) if wanted[1] else None
