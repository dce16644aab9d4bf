"""Attention over packed sequences, without padding.

out_i = sum over j of p_ij * v_j,    p_ij = exp(scale * q_i . k_j) / sum over j of the same

j runs over the keys of the sequence of query i and, if causal, not beyond it.

A batch of sentences in random order is mostly padding, on which torch's kernels spend as much time
as on tokens. Packed sequences avoid that. Which implementation runs:

    CPU, float32 or bfloat16, head_dim up to MAX_HEAD_DIM    `native`, in tiles that fit the cache
    GPU that runs FlashAttention 2, half precision           torch's varlen kernel
    the same GPU, float32 or another head_dim, eager         `flex`, torch's flex attention
    otherwise                                                `reference`, which pads

The reference reads the lengths of the sequences. A caller on a device other than the CPU asks
`can_use_varlen` first, and pads by itself if the answer is no.

Dao et al., FlashAttention, 2022, arXiv 2205.14135: the softmax over blocks of keys.
"""

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.kernels import library
from addnorm.kernels.attention import native
from addnorm.kernels.attention.flex import can_use_flex, flex_varlen_attention
from addnorm.kernels.attention.reference import SequenceOffsets, padded_attention
from addnorm.kernels.device_dtypes import autocast_dtype

__all__ = ["SequenceOffsets", "can_use_varlen", "can_use_varlen_native", "varlen_attention"]

MAX_HEAD_DIM = 512
"""Largest head_dim that the native library takes; larger tiles would not fit into the cache."""

HAS_VARLEN_ATTN = torch.__version__ >= "2.12"
"""Whether torch's varlen kernel has windows and grouped heads. Importing it to look is slow."""


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
    """Attend from every sequence to its own keys.

    Args:
        q: (heads, N, K) queries of all sequences
        k: (kv_heads, M, K) keys, each shared by heads / kv_heads heads; any strides
        v: (kv_heads, M, K) values, likewise
        queries: offsets of the sequences in q
        keys: offsets of the sequences in k and v
        causal: query i of a sequence sees its keys 0 to i; lengths must be equal
        scale: factor of the logits

    Returns:
        (heads, N, K), in memory as (N, heads, K); zeros for queries of a sequence without keys.
        Under autocast the computation and the result are in its dtype.

    >>> x = torch.randn(5, 2, 4).transpose(0, 1)  # two heads, five tokens
    >>> offsets = SequenceOffsets.from_lengths([3, 2])
    >>> varlen_attention(x, x, x, offsets, offsets, causal=True, scale=0.5).shape
    torch.Size([2, 5, 4])
    """
    _check(q, k, v, queries, keys)
    dtype = autocast_dtype(q.device.type)
    if dtype is not None:
        q, k, v = (_cast(each, dtype) for each in (q, k, v))
    if can_use_varlen_native(q, k, v):
        return native.varlen_attention_native(q, k, v, queries, keys, causal=causal, scale=scale)
    if _can_use_flash(q, k, q.dtype):
        return _flash_attention(q, k, v, queries, keys, causal=causal, scale=scale)
    if can_use_flex(q, k, q.dtype):
        return flex_varlen_attention(q, k, v, queries, keys, causal=causal, scale=scale)
    return padded_attention(q, k, v, queries, keys, causal=causal, scale=scale)


def can_use_varlen(q: Tensor, k: Tensor) -> bool:
    """Return whether `varlen_attention` runs without reading values from another device."""
    kind = q.device.type
    if kind == "cpu":
        return True
    dtype = autocast_dtype(kind) or q.dtype
    return _can_use_flash(q, k, dtype) or can_use_flex(q, k, dtype)


def can_use_varlen_native(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether `varlen_attention` uses the native library for these tensors."""
    return (
        q.dtype in native.DTYPE_CODES
        and q.dtype == k.dtype == v.dtype
        and q.shape[-1] <= MAX_HEAD_DIM
        and library.can_use_native(0, q, k, v)
    )


def _can_use_flash(q: Tensor, k: Tensor, dtype: torch.dtype) -> bool:
    """Return whether torch's varlen kernel (FlashAttention 2) supports these tensors."""
    return (
        q.device.type == "cuda"
        and HAS_VARLEN_ATTN
        and dtype in (torch.float16, torch.bfloat16)
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
    from torch.nn.attention.varlen import varlen_attn  # slow: registers operators

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
            "q, k and v: expected shapes (heads, N, K) and twice (kv_heads, M, K), where kv_heads "
            f"divides heads, got {shapes}"
        )
    for starts in (queries.starts, keys.starts):
        if starts.dtype != torch.int32 or starts.ndim != 1 or starts.device != q.device:
            raise UserError(
                f"starts: expected int32 of shape (sequences + 1,) on {q.device}, got "
                f"{starts.dtype} of shape {tuple(starts.shape)} on {starts.device}"
            )
    if queries.starts.shape != keys.starts.shape or not len(keys.starts):
        raise UserError(
            "starts: expected sequences + 1 for queries and for keys, got "
            f"{len(queries.starts)} and {len(keys.starts)}"
        )
