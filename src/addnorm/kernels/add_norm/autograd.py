"""Gradients of the native dropout, add and norm.

There are two entries to the same forward and backward:

    eager       `_AddNorm`, an autograd function, which has the least overhead
    compiled    the operators `addnorm::add_norm` and `addnorm::add_norm_backward`, because
                torch.compile cannot trace a call of the library

With h the normalized s and rstd = 1 / sqrt(var(s) + eps), both from the forward, the backward is

    g  = dy * weight
    t  = rstd * (g - mean(g) - h * mean(g * h)) + ds      without mean(g) if rms
    dx = scale * t,   df = t * dropout factors            drawn again from the seed
    dweight = sum over rows of dy * h,   dbias = sum of dy,   dscales = sum of x * t

The example of `native`, where h = [-1, 1, -1, 1] and rstd = 0.5, gives for dy = [4, 0, 0, 0]:

    >>> from addnorm.kernels.add_norm.ops import NormParams, add_norm
    >>> x = torch.tensor([[0.0, 1.0, 0.0, 1.0]], requires_grad=True)
    >>> f = torch.tensor([[1.0, 4.0, 1.0, 4.0]])
    >>> y = add_norm(x, f, NormParams(rms=False, weight=None, bias=None, eps=0.0))
    >>> y.backward(torch.tensor([[4.0, 0.0, 0.0, 0.0]]))
    >>> x.grad  # 0.5 * (dy - 1 + h)
    tensor([[ 1.,  0., -1.,  0.]])

A backward under create_graph=True or torch.func runs `_differentiable_backward`, the same formulas
in torch operations.
"""

from typing import Any

import torch
from torch import Tensor

from addnorm.kernels import library
from addnorm.kernels.add_norm import native
from addnorm.kernels.add_norm.native import AddNormOptions, AddNormTensors, SavedTensors
from addnorm.kernels.add_norm.reference import to_float32
from addnorm.kernels.dropout_rng import dropout_factors

Gradients = tuple[Tensor | None, ...]


def add_norm(
    x: Tensor, f: Tensor, tensors: AddNormTensors, options: AddNormOptions, *, return_sum: bool
) -> tuple[Tensor, Tensor]:
    """Return s and y. Without `return_sum` and without gradients, s is empty or None."""
    weight, bias, scales, _ = tensors
    requires_grad = torch.is_grad_enabled() and (
        (x.requires_grad or f.requires_grad)
        or any(each is not None and each.requires_grad for each in (weight, bias, scales))
    )
    if torch.compiler.is_compiling():
        y, s, _ = torch.ops.addnorm.add_norm(x, f, *tensors, *options, return_sum or requires_grad)
    elif requires_grad:
        y, s = _AddNorm.apply(x, f, weight, bias, scales, tensors, options)  # type: ignore[no-untyped-call]
    else:
        y, s, _ = native.forward(x, f, tensors, options, return_sum=return_sum)
    return s, y


class _AddNorm(torch.autograd.Function):
    """Map to (y, s). Gradients reach weight, bias and scales only as direct arguments, so these are
    passed twice: by themselves, and inside `tensors`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        tensors, options = rest[3:]
        y, s, statistics = native.forward(x, f, tensors, options, return_sum=True)
        assert s is not None and statistics is not None
        _save_context(ctx, x, f, tensors, options, s, statistics)
        return y, s

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        return (*_compute_gradients(ctx, grads[0], grads[1], native.backward), None, None)


def _save_context(
    ctx: Any,
    x: Tensor,
    f: Tensor,
    tensors: AddNormTensors,
    options: AddNormOptions,
    s: Tensor,
    statistics: Tensor,
) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(s, statistics, None if tensors.scales is None else x, *tensors)
    ctx.options, ctx.dtype = options, f.dtype


def _compute_gradients(
    ctx: Any, dy: Tensor | None, ds: Tensor | None, backward_fn: Any
) -> Gradients:
    """Return the gradients of stream, branch, gain, bias and scales."""
    s, statistics, x, weight, bias, scales, seed = ctx.saved_tensors
    saved, tensors = SavedTensors(s, statistics, x), AddNormTensors(weight, bias, scales, seed)
    options, dtype, requires_grad = ctx.options, ctx.dtype, ctx.needs_input_grad[:5]
    if dy is None:
        dy = torch.zeros_like(s)
    if library.needs_differentiable_backward(dy, ds):
        return _differentiable_backward(
            dy, ds, saved, tensors, options, dtype=dtype, requires_grad=requires_grad
        )
    dx, df, dw, db, da = backward_fn(
        dy, ds, saved, tensors, options, dtype=dtype, requires_grad=requires_grad
    )
    if requires_grad[1] and df is None:  # equal to that of the stream
        df = dx
    return dx, df, _cast_like(dw, weight), _cast_like(db, bias), _cast_like(da, scales)


def _cast_like(gradient: Tensor | None, vector: Tensor | None) -> Tensor | None:
    """Cast a gradient to the dtype of its vector."""
    if gradient is None or vector is None or gradient.dtype == vector.dtype:
        return gradient
    return gradient.to(vector.dtype)


def _differentiable_backward(
    dy: Tensor,
    ds: Tensor | None,
    saved: SavedTensors,
    tensors: AddNormTensors,
    options: AddNormOptions,
    *,
    dtype: torch.dtype,
    requires_grad: tuple[bool, ...],
) -> Gradients:
    """Compute the backward of `native.backward` in torch operations.

    The saved s is an output of the function, so autograd connects it to x and f.
    """
    weight, bias, scales, seed = tensors
    s, dy = to_float32(saved.s), to_float32(dy)
    centered = s if options.rms else s - s.mean(-1, keepdim=True)
    rstd = (centered.square().mean(-1, keepdim=True) + options.eps).rsqrt()
    h = centered * rstd
    g = dy if weight is None else dy * weight
    t = rstd * (g - h * (g * h).mean(-1, keepdim=True))
    t = t if options.rms else t - rstd * g.mean(-1, keepdim=True)
    t = t if ds is None else t + ds
    dx = t * (options.scale if scales is None else scales)
    df = t if seed is None else t * dropout_factors(t, seed, options.rate)
    sums = (dy * h, dy, dy if saved.x is None else saved.x * t)
    vectors = zip(sums, (weight, bias, scales), requires_grad[2:], strict=True)
    return (
        dx.to(saved.s.dtype),
        df.to(dtype),
        *(
            each.flatten(0, -2).sum(0).to(vector.dtype) if needed and vector is not None else None
            for each, vector, needed in vectors
        ),
    )


# Operators for compiled graphs. An operator cannot return None; it returns an empty tensor.


def _empty_if_none(tensor: Tensor | None) -> Tensor:
    return torch.empty(0) if tensor is None else tensor


@torch.library.custom_op("addnorm::add_norm", mutates_args=(), device_types="cpu")
def _add_norm(
    x: Tensor,
    f: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    seed: Tensor | None,
    rms: bool,
    eps: float,
    scale: float,
    rate: float,
    return_sum: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    tensors = AddNormTensors(weight, bias, scales, seed)
    options = AddNormOptions(rms, eps, scale, rate)
    y, s, statistics = native.forward(x, f, tensors, options, return_sum=return_sum)
    return y, _empty_if_none(s), _empty_if_none(statistics)


@_add_norm.register_fake
def _(x: Tensor, f: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return_sum = rest[-1]
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not return_sum:
        return y, _empty_if_none(None), _empty_if_none(None)
    return y, torch.empty_like(y), x.new_empty((2, x.numel() // x.shape[-1]), dtype=torch.float32)


# With a written schema; torch before 2.7 does not infer one from list[bool].
@torch.library.custom_op(
    "addnorm::add_norm_backward",
    mutates_args=(),
    device_types="cpu",
    schema=(
        "(Tensor dy, Tensor? ds, Tensor s, Tensor statistics, Tensor? x, Tensor? weight, "
        "Tensor? bias, Tensor? scales, Tensor? seed, bool rms, float eps, float scale, float rate, "
        "ScalarType dtype, bool[] requires_grad) -> Tensor[]"
    ),
)
def _add_norm_backward(
    dy: Tensor,
    ds: Tensor | None,
    s: Tensor,
    statistics: Tensor,
    x: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    seed: Tensor | None,
    rms: bool,
    eps: float,
    scale: float,
    rate: float,
    dtype: torch.dtype,
    requires_grad: list[bool],
) -> list[Tensor]:
    saved, tensors = SavedTensors(s, statistics, x), AddNormTensors(weight, bias, scales, seed)
    options = AddNormOptions(rms, eps, scale, rate)
    grads = native.backward(
        dy, ds, saved, tensors, options, dtype=dtype, requires_grad=requires_grad
    )
    return [_empty_if_none(each) for each in grads]


@_add_norm_backward.register_fake
def _(dy: Tensor, ds: Tensor | None, s: Tensor, *rest: Any) -> list[Tensor]:
    _, _, _, _, scales, seed, *numbers, dtype, requires_grad = rest
    tensors, options = AddNormTensors(None, None, scales, seed), AddNormOptions(*numbers)
    same = requires_grad[0] and native.shares_gradient(options, tensors, s.dtype, dtype)
    return [
        _empty_if_none(torch.empty_like(s) if requires_grad[0] else None),
        _empty_if_none(torch.empty_like(s, dtype=dtype) if requires_grad[1] and not same else None),
        *(
            _empty_if_none(s.new_empty(s.shape[-1], dtype=torch.float32) if needed else None)
            for needed in requires_grad[2:]
        ),
    ]


def _setup_context(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]
) -> None:
    x, f, *rest = inputs
    _, s, statistics = output
    ctx.mark_non_differentiable(statistics)
    _save_context(ctx, x, f, AddNormTensors(*rest[:4]), AddNormOptions(*rest[4:8]), s, statistics)


def _op_backward(ctx: Any, *grads: Tensor | None) -> Gradients:
    def run_operator(
        dy: Tensor,
        ds: Tensor | None,
        saved: SavedTensors,
        tensors: AddNormTensors,
        options: AddNormOptions,
        *,
        dtype: torch.dtype,
        requires_grad: tuple[bool, ...],
    ) -> list[Tensor | None]:
        operator = torch.ops.addnorm.add_norm_backward
        outputs = operator(dy, ds, *saved, *tensors, *options, dtype, list(requires_grad))
        return [each if each.numel() else None for each in outputs]

    return (*_compute_gradients(ctx, grads[0], grads[1], run_operator), *[None] * 6)


_add_norm.register_autograd(_op_backward, setup_context=_setup_context)
