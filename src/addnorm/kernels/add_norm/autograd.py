"""Dropout, add and norm by the native library, with gradients.

An eager program goes the short way of an autograd function; a compiled graph has the operators
`addnorm::add_norm` and `addnorm::add_norm_backward`.
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
    """s and y; an empty s where neither it nor a gradient is wanted."""
    weight, bias, scales, _ = tensors
    wanted = torch.is_grad_enabled() and (
        (x.requires_grad or f.requires_grad)
        or any(each is not None and each.requires_grad for each in (weight, bias, scales))
    )
    if torch.compiler.is_compiling():
        y, s, _ = torch.ops.addnorm.add_norm(x, f, *tensors, *options, return_sum or wanted)
    elif wanted:
        y, s = _AddNorm.apply(x, f, weight, bias, scales, tensors, options)  # type: ignore[no-untyped-call]
    else:
        y, s, _ = native.forward(x, f, tensors, options, return_sum=return_sum)
    return s, y


class _AddNorm(torch.autograd.Function):
    """y and s."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        given, how = rest[3:]  # after the tensors of `given` that may want a gradient
        y, s, statistics = native.forward(x, f, given, how, return_sum=True)
        assert s is not None and statistics is not None
        _save_context(ctx, x, f, given, how, s, statistics)
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
    ctx.how, ctx.dtype = options, f.dtype


def _compute_gradients(
    ctx: Any, dy: Tensor | None, ds: Tensor | None, backward_fn: Any
) -> Gradients:
    """Of stream, branch, gain, bias and scales."""
    s, statistics, x, weight, bias, scales, seed = ctx.saved_tensors
    saved, given = SavedTensors(s, statistics, x), AddNormTensors(weight, bias, scales, seed)
    how, dtype, wanted = ctx.how, ctx.dtype, ctx.needs_input_grad[:5]
    if dy is None:
        dy = torch.zeros_like(s)
    if library.needs_differentiable_backward(dy, ds):
        return _differentiable_backward(
            dy, ds, saved, given, how, dtype=dtype, requires_grad=wanted
        )
    dx, df, dw, db, da = backward_fn(dy, ds, saved, given, how, dtype=dtype, wanted=wanted)
    if wanted[1] and df is None:
        df = dx
    return dx, df, _cast_like(dw, weight), _cast_like(db, bias), _cast_like(da, scales)


def _cast_like(gradient: Tensor | None, vector: Tensor | None) -> Tensor | None:
    """In the type of what it is the gradient of."""
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
    """The same in plain torch, for gradients of gradients: s knows where it comes from."""
    weight, bias, scales, seed = tensors
    s, dy = to_float32(saved.s), to_float32(dy)
    centred = s if options.rms else s - s.mean(-1, keepdim=True)
    rstd = (centred.square().mean(-1, keepdim=True) + options.eps).rsqrt()
    h = centred * rstd
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
            each.flatten(0, -2).sum(0).to(vector.dtype) if want and vector is not None else None
            for each, vector, want in vectors
        ),
    )


# For compiled graphs, which cannot look into the library. An operator of torch cannot return None.


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
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    given, how = AddNormTensors(weight, bias, scales, seed), AddNormOptions(rms, eps, scale, rate)
    y, s, statistics = native.forward(x, f, given, how, return_sum=keep)
    return y, _empty_if_none(s), _empty_if_none(statistics)


@_add_norm.register_fake
def _(x: Tensor, f: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    keep = rest[-1]
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not keep:
        return y, _empty_if_none(None), _empty_if_none(None)
    return y, torch.empty_like(y), x.new_empty((2, x.numel() // x.shape[-1]), dtype=torch.float32)


@torch.library.custom_op("addnorm::add_norm_backward", mutates_args=(), device_types="cpu")
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
    wanted: list[bool],
) -> list[Tensor]:
    saved, given = SavedTensors(s, statistics, x), AddNormTensors(weight, bias, scales, seed)
    how = AddNormOptions(rms, eps, scale, rate)
    found = native.backward(dy, ds, saved, given, how, dtype=dtype, wanted=wanted)
    return [_empty_if_none(each) for each in found]


@_add_norm_backward.register_fake
def _(dy: Tensor, ds: Tensor | None, s: Tensor, *rest: Any) -> list[Tensor]:
    _, _, _, _, scales, seed, *how, dtype, wanted = rest
    given = AddNormTensors(None, None, scales, seed)
    apart = wanted[1] and not (
        wanted[0] and native.shares_gradient(AddNormOptions(*how), given, s.dtype, dtype)
    )
    return [
        _empty_if_none(torch.empty_like(s) if wanted[0] else None),
        _empty_if_none(torch.empty_like(s, dtype=dtype) if apart else None),
        *(
            _empty_if_none(s.new_empty(s.shape[-1], dtype=torch.float32) if want else None)
            for want in wanted[2:]
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
    def run(
        dy: Tensor,
        ds: Tensor | None,
        saved: SavedTensors,
        given: AddNormTensors,
        how: AddNormOptions,
        **rest: Any,
    ) -> list[Tensor | None]:
        wanted, operator = list(rest["wanted"]), torch.ops.addnorm.add_norm_backward
        found = operator(dy, ds, *saved, *given, *how, rest["dtype"], wanted)
        return [each if each.numel() else None for each in found]

    return (*_compute_gradients(ctx, grads[0], grads[1], run), *[None] * 6)


_add_norm.register_autograd(_op_backward, setup_context=_setup_context)
