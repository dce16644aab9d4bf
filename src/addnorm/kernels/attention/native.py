"""Attention over packed sequences by the native library, with gradients.

An eager program goes the short way of an autograd function; a compiled graph has the operators
`addnorm::varlen_attention` and `addnorm::varlen_attention_backward`.
"""

import struct
from typing import Any

import torch
from torch import Tensor

from addnorm.kernels import library
from addnorm.kernels.attention.reference import (
    SequenceOffsets,
    causal_length_error,
    offsets_error,
    padded_attention,
)

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}
"""As the library counts them."""

Gradients = tuple[Tensor | None, ...]


ATTENTION_STRUCT = struct.Struct("@6q2P2ifP" + 8 * "P2q")
"""`struct addnorm_attention` of native/attention.h."""


def varlen_attention_native(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: SequenceOffsets,
    keys: SequenceOffsets,
    *,
    causal: bool,
    scale: float,
) -> Tensor:
    """`varlen_attention` of what `varlen.can` takes."""
    given = (q, k, v, queries.starts, keys.starts)
    if torch.compiler.is_compiling():
        out: Tensor = torch.ops.addnorm.varlen_attention(*given, causal, scale)[0]
        return out
    if torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v)):
        return _VarlenAttention.apply(*given, causal, scale)  # type: ignore[no-untyped-call]
    return forward(*given, causal, scale)[0]


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The output, and log2 of the sum under each query's probabilities, (heads, N)."""
    q, k, v = (_with_dense_features(each) for each in (q, k, v))
    starts = query_starts.contiguous(), key_starts.contiguous()
    out, lse = _empty_token_major(q), q.new_empty(q.shape[:2], dtype=torch.float32)
    _call_native("attention_forward", (q, k, v, *starts, out, lse), [], causal, scale)
    return out, lse


def backward(dout: Tensor, saved: tuple[Tensor, ...], causal: bool, scale: float) -> list[Tensor]:
    """Gradients of q, k and v."""
    q, k, v, *starts, out, lse = saved
    q, k, v, dout = (_with_dense_features(each) for each in (q, k, v, dout))
    grads = [_empty_token_major(each) for each in (q, k, v)]
    saved = (q, k, v, *(each.contiguous() for each in starts), out, lse)
    _call_native("attention_backward", saved, [dout, *grads], causal, scale)
    return grads


class _VarlenAttention(torch.autograd.Function):
    """Saves the output and a number for each query; probabilities are made again."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        out, lse = forward(*inputs)
        _save_context(ctx, inputs, (out, lse))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        return _compute_gradients(ctx, grads[0], backward)


def _save_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *outputs)
    ctx.how = inputs[5:]


def _compute_gradients(ctx: Any, dout: Tensor, backward_fn: Any) -> Gradients:
    causal, scale = ctx.how
    if torch.is_grad_enabled():
        return (*_differentiable_backward(dout, ctx.saved_tensors, causal, scale), *[None] * 4)
    return (*backward_fn(dout, ctx.saved_tensors, causal, scale), *[None] * 4)


def _differentiable_backward(
    dout: Tensor, saved: tuple[Tensor, ...], causal: bool, scale: float
) -> Gradients:
    """The same in plain torch, for whoever wants gradients of gradients."""
    # Other names of them: whatever one owes to another is the business of their own graph.
    q, k, v = (each.view_as(each) for each in saved[:3])
    query_starts, key_starts = saved[3:5]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        queries, keys = SequenceOffsets(query_starts, 0), SequenceOffsets(key_starts, 0)
        out = padded_attention(q, k, v, queries, keys, causal=causal, scale=scale)
        wanted = [each for each in (q, k, v) if each.requires_grad]
        grads = iter(torch.autograd.grad(out, wanted, dout, create_graph=True))
    return tuple(next(grads) if each.requires_grad else None for each in (q, k, v))


def _call_native(
    name: str, saved: tuple[Tensor, ...], grads: list[Tensor], causal: bool, scale: float
) -> None:
    q, k, v, query_starts, key_starts, out, lse = saved
    heads, queries, dim = q.shape
    at: list[int] = []
    for each in (q, k, v, out, *grads):
        at += (each.data_ptr(), *each.stride()[:2])
    given = ATTENTION_STRUCT.pack(
        *(len(query_starts) - 1, heads, len(k), dim, queries, k.shape[1]),
        *(query_starts.data_ptr(), key_starts.data_ptr(), DTYPE_CODES[q.dtype], causal, scale),
        lse.data_ptr(),
        *at,
        *[0] * (24 - len(at)),
    )
    wrong = library.call_native(name, given)
    if wrong == 3:
        raise MemoryError("no memory for the scratch of attention")
    if wrong:
        raise causal_length_error() if wrong == 2 else offsets_error()


def _with_dense_features(x: Tensor) -> Tensor:
    """With features side by side; heads and tokens may stand anywhere."""
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


def _empty_token_major(x: Tensor) -> Tensor:
    """(heads, N, K) as (N, heads, K) in memory."""
    heads, _, dim = x.shape
    return torch.empty_strided(x.shape, (dim, heads * dim, 1), dtype=x.dtype, device=x.device)


# For compiled graphs, which cannot look into the library.


@torch.library.custom_op("addnorm::varlen_attention", mutates_args=(), device_types="cpu")
def _varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    return forward(q, k, v, query_starts, key_starts, causal, scale)


@_varlen_attention.register_fake
def _(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _empty_token_major(q), q.new_empty(q.shape[:2], dtype=torch.float32)


@torch.library.custom_op("addnorm::varlen_attention_backward", mutates_args=(), device_types="cpu")
def _varlen_attention_backward(
    dout: Tensor, saved: list[Tensor], causal: bool, scale: float
) -> list[Tensor]:
    return backward(dout, tuple(saved), causal, scale)


@_varlen_attention_backward.register_fake
def _(dout: Tensor, saved: list[Tensor], causal: bool, scale: float) -> list[Tensor]:
    return [_empty_token_major(each) for each in saved[:3]]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    _save_context(ctx, inputs, output)


def _op_backward(ctx: Any, dout: Tensor, _: Tensor | None) -> Gradients:
    def run(dout: Tensor, saved: tuple[Tensor, ...], causal: bool, scale: float) -> list[Tensor]:
        return torch.ops.addnorm.varlen_attention_backward(dout, list(saved), causal, scale)

    return _compute_gradients(ctx, dout, run)


_varlen_attention.register_autograd(_op_backward, setup_context=_setup_context)
