"""Attention over sequences that stand end to end, without padding.

out_i = sum over j of p_ij * v_j,    p_ij = exp(scale * q_i . k_j) / sum of the same over all j

where j goes over the keys of the sequence of query i and, if causal, not beyond it.

A batch of sentences in random order is mostly padding, which torch's kernels compute like all else.
On a CPU the native library takes each sequence for itself, in squares that stay in the cache; the
backward makes the probabilities again. On a GPU it is torch's own kernel for such batches, and
elsewhere `sequences.py` pads sequences of like length.

Dao et al., FlashAttention, 2022, arXiv 2205.14135: the softmax that runs over blocks of keys.
"""

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.kernels import library
from addnorm.kernels.attention import native
from addnorm.kernels.attention.reference import SequenceOffsets, padded_attention

__all__ = ["SequenceOffsets", "can_use_varlen_native", "varlen_attention"]

MAX_HEAD_DIM = 512
"""Features of a head that the native library takes: its squares would leave the cache."""


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: SequenceOffsets,
    keys: SequenceOffsets,
    *,
    causal: bool = False,
    scale: float,
) -> Tensor:
    """Attention of every sequence to its own keys, (heads, N, K), in memory as (N, heads, K).

    q: (heads, N, K), the N queries of all sequences
    k, v: (kv_heads, M, K), each serving heads / kv_heads heads; they need not be dense
    queries, keys: where each sequence begins
    causal: query i of a sequence sees its keys 0 to i, of which there are as many

    A query of a sequence without keys gets zeros. Under autocast all is done in its type.

    >>> x = torch.randn(5, 2, 4).transpose(0, 1)
    >>> bounds = Bounds.of([3, 2])
    >>> varlen_attention(x, x, x, bounds, bounds, causal=True, scale=0.5).shape
    torch.Size([2, 5, 4])
    """
    _check(q, k, v, queries, keys)
    kind = q.device.type
    if torch.is_autocast_enabled(kind):
        q, k, v = (_cast(each, torch.get_autocast_dtype(kind)) for each in (q, k, v))
    if _is_native_supported(q, k, v):
        return native.varlen_attention_native(q, k, v, queries, keys, causal=causal, scale=scale)
    if _can_use_flash(q, k):
        return _flash_attention(q, k, v, queries, keys, causal=causal, scale=scale)
    return padded_attention(q, k, v, queries, keys, causal=causal, scale=scale)


def can_use_varlen_native(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the native library takes these, and no graph is being compiled.

    A compiled graph has it as an operator all the same if `varlen_attention` is called.
    """
    return not torch.compiler.is_compiling() and _is_native_supported(q, k, v)


def _is_native_supported(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return (
        q.dtype in native.DTYPE_CODES
        and q.dtype == k.dtype == v.dtype
        and q.shape[-1] <= MAX_HEAD_DIM
        and library.can_use_native(0, q, k, v)
    )


def _can_use_flash(q: Tensor, k: Tensor) -> bool:
    """Whether torch has a kernel for such batches: FlashAttention 2 on a GPU of its kind."""
    return (
        q.device.type == "cuda"
        and q.dtype in (torch.float16, torch.bfloat16)
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 256
        and min(q.shape[1], k.shape[1]) > 0
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
    )


def _flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: SequenceOffsets,
    keys: SequenceOffsets,
    *,
    causal: bool,
    scale: float,
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # registers operators, which takes a while

    q, k, v = (each.transpose(0, 1) for each in (q, k, v))
    out = varlen_attn(
        q,
        k,
        v,
        queries.starts,
        keys.starts,
        queries.max_length,
        keys.max_length,
        scale=scale,
        window_size=(-1, 0 if causal else -1),
        enable_gqa=k.shape[1] < q.shape[1],
    )
    assert isinstance(out, Tensor)
    return out.transpose(0, 1)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == torch.float64 else x.to(dtype)  # as autocast does


def _check(
    q: Tensor, k: Tensor, v: Tensor, queries: SequenceOffsets, keys: SequenceOffsets
) -> None:
    fit = q.ndim == k.ndim == 3 and k.shape == v.shape and q.shape[2] == k.shape[2]
    if not fit or not len(k) or len(q) % len(k):
        shapes = ", ".join(str(tuple(each.shape)) for each in (q, k, v))
        raise UserError(
            f"queries, keys and values have shapes {shapes}; wanted (heads, N, K) and twice "
            "(kv_heads, M, K), kv_heads one that divides heads"
        )
    for starts in (queries.starts, keys.starts):
        if starts.dtype != torch.int32 or starts.ndim != 1 or starts.device != q.device:
            raise UserError(
                f"starts are {starts.dtype} of shape {tuple(starts.shape)} on {starts.device}; "
                f"wanted int32 of shape (sequences + 1,) on {q.device}"
            )
    if queries.starts.shape != keys.starts.shape or not len(keys.starts):
        raise UserError(
            f"{len(queries.starts)} starts of queries and {len(keys.starts)} of keys; wanted as "
            "many of both, one more than there are sequences"
        )
