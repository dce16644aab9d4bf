"""Native attention over packed sequences, with gradients.

The sequences of a batch are packed one after another, without padding: `starts` of [0, 1, 3] are
sequences of one and two tokens. The kernel takes one sequence and head at a time and never
multiplies tokens of different sequences.

The forward saves its output and one number per query, lse, the log2 of the softmax denominator. The
backward recomputes the probabilities from it, p_ij = 2 ** (scale * log2(e) * q_i . k_j - lse_i), so
memory grows linearly with the sequence length. Example with queries of zeros, for which all visible
keys have equal weight:

    v           1, 2, 4      in every feature
    out         1, 3, 3      means over the sequence
    lse         0, 1, 1      log2 of the number of visible keys

    >>> from addnorm.kernels.attention.varlen import varlen_attention
    >>> q, v = torch.zeros(1, 3, 1), torch.tensor([1.0, 2.0, 4.0]).view(1, 3, 1)
    >>> starts = SequenceOffsets.from_lengths([1, 2])
    >>> varlen_attention(q, q, v, starts, starts, scale=1.0).flatten().tolist()
    [1.0, 3.0, 3.0]
    >>> varlen_attention(q, q, v, starts, starts, causal=True, scale=1.0).flatten().tolist()
    [1.0, 2.0, 3.0]

As in `add_norm.autograd`, an eager program calls an autograd function, and a compiled graph the
operators `addnorm::varlen_attention` and `addnorm::varlen_attention_backward`.
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
"""Codes of native/common/addnorm.h."""

Gradients = tuple[Tensor | None, ...]

ATTENTION_STRUCT = struct.Struct("@6q2P2ifP" + 8 * "P2q")
"""`struct addnorm_attention` of native/attention/attention.h."""

UNEQUAL_LENGTHS, NO_MEMORY = 2, 3
"""Error codes of the same header; the other one is for bad starts."""


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
    """Compute `varlen_attention` for tensors that the native library supports."""
    tensors = (q, k, v, queries.starts, keys.starts)
    if torch.compiler.is_compiling():
        out: Tensor = torch.ops.addnorm.varlen_attention(*tensors, causal, scale)[0]
        return out
    if torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v)):
        return _VarlenAttention.apply(*tensors, causal, scale)  # type: ignore[no-untyped-call]
    return forward(*tensors, causal, scale)[0]


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the output and the log2 of each query's softmax denominator, (heads, N)."""
    q, k, v = (_with_dense_features(each) for each in (q, k, v))
    starts = query_starts.contiguous(), key_starts.contiguous()
    out, lse = _empty_token_major(q), q.new_empty(q.shape[:2], dtype=torch.float32)
    _call_native("attention_forward", (q, k, v, *starts, out, lse), [], causal, scale)
    return out, lse


def backward(dout: Tensor, saved: tuple[Tensor, ...], causal: bool, scale: float) -> list[Tensor]:
    """Return the gradients of q, k and v; `saved` is q, k, v, both starts, out, lse."""
    q, k, v, *starts, out, lse = saved
    q, k, v, dout = (_with_dense_features(each) for each in (q, k, v, dout))
    grads = [_empty_token_major(each) for each in (q, k, v)]
    saved = (q, k, v, *(each.contiguous() for each in starts), out, lse)
    _call_native("attention_backward", saved, [dout, *grads], causal, scale)
    return grads


class _VarlenAttention(torch.autograd.Function):
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
    ctx.options = inputs[5:]


def _compute_gradients(ctx: Any, dout: Tensor, backward_fn: Any) -> Gradients:
    causal, scale = ctx.options
    if torch.is_grad_enabled():
        return (*_differentiable_backward(dout, ctx.saved_tensors, causal, scale), *[None] * 4)
    return (*backward_fn(dout, ctx.saved_tensors, causal, scale), *[None] * 4)


def _differentiable_backward(
    dout: Tensor, saved: tuple[Tensor, ...], causal: bool, scale: float
) -> Gradients:
    """Compute the gradients in torch operations, for gradients of gradients."""
    # Views, so that autograd.grad stops here if q, k and v depend on each other.
    q, k, v = (each.view_as(each) for each in saved[:3])
    query_starts, key_starts = saved[3:5]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        queries, keys = SequenceOffsets(query_starts, 0), SequenceOffsets(key_starts, 0)
        out = padded_attention(q, k, v, queries, keys, causal=causal, scale=scale)
        inputs = [each for each in (q, k, v) if each.requires_grad]
        grads = iter(torch.autograd.grad(out, inputs, dout, create_graph=True))
    return tuple(next(grads) if each.requires_grad else None for each in (q, k, v))


def _call_native(
    name: str, saved: tuple[Tensor, ...], grads: list[Tensor], causal: bool, scale: float
) -> None:
    q, k, v, query_starts, key_starts, out, lse = saved
    heads, queries, dim = q.shape
    views: list[int] = []  # address and strides of each tensor
    for each in (q, k, v, out, *grads):
        views += (each.data_ptr(), *each.stride()[:2])
    arguments = ATTENTION_STRUCT.pack(
        *(len(query_starts) - 1, heads, len(k), dim, queries, k.shape[1]),
        *(query_starts.data_ptr(), key_starts.data_ptr(), DTYPE_CODES[q.dtype], causal, scale),
        lse.data_ptr(),
        *views,
        *[0] * (24 - len(views)),
    )
    error = library.call_native(name, arguments)
    if error == NO_MEMORY:
        raise MemoryError("cannot allocate the workspace of attention")
    if error:
        raise causal_length_error() if error == UNEQUAL_LENGTHS else offsets_error()


def _with_dense_features(x: Tensor) -> Tensor:
    """Return x with a dense last axis; the strides of heads and tokens are free."""
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


def _empty_token_major(x: Tensor) -> Tensor:
    """Return an empty tensor like x, (heads, N, K), in memory (N, heads, K)."""
    heads, _, dim = x.shape
    return torch.empty_strided(x.shape, (dim, heads * dim, 1), dtype=x.dtype, device=x.device)


# Operators for compiled graphs.


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


# With a written schema; torch before 2.7 does not infer one from list[Tensor].
@torch.library.custom_op(
    "addnorm::varlen_attention_backward",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor dout, Tensor[] saved, bool causal, float scale) -> Tensor[]",
)
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
    def run_operator(
        dout: Tensor, saved: tuple[Tensor, ...], causal: bool, scale: float
    ) -> list[Tensor]:
        return torch.ops.addnorm.varlen_attention_backward(dout, list(saved), causal, scale)

    return _compute_gradients(ctx, dout, run_operator)


_varlen_attention.register_autograd(_op_backward, setup_context=_setup_context)
