"""Native attention for incremental decoding: few queries, many keys, forward only.

out_i = sum over j of p_ij * v_j,    p_ij = exp(scale * q_i . k_j) / sum over j of the same

torch's kernel works on tiles of queries and keys, which a single query does not fill. This kernel
walks over the visible keys of one query at a time and never reads a hidden key. Example with one
query of zeros, for which all visible keys have equal weight:

    v           1, 5, 3      in every feature
    visible     True, False, True
    out         2            the mean of the visible values

`can_use_decode_attention` holds the conditions: at most MAX_QUERIES queries and many more keys,
float32 without gradients, eager mode. Otherwise the caller uses torch's
`scaled_dot_product_attention`.
"""

import struct

import torch
from torch import Tensor

from addnorm.kernels import library

MAX_QUERIES, HEAD_DIM_MULTIPLE = 8, 16
"""Largest number of queries at which the kernel is faster (`addnorm bench kernels`), and the
divisor of head_dim that this takes."""
DECODE_STRUCT = struct.Struct("@6qf" + 4 * "P3q" + "P4q")
"""`struct addnorm_decode_attention` of native/decode_attention/decode_attention.h."""


def can_use_decode_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> bool:
    """Return whether `decode_attention` supports these tensors and is faster than torch."""
    if not library.is_eager() or torch.is_autocast_enabled("cpu"):
        return False
    return (
        q.shape[2] <= MAX_QUERIES
        and (q.shape[2] == 1 or 4 * q.shape[2] <= k.shape[2])
        and q.shape[3] % HEAD_DIM_MULTIPLE == 0
        and (len(q), q.shape[3]) == (len(k), k.shape[3])
        and k.shape == v.shape
        and q.dtype == k.dtype == v.dtype == torch.float32
        and (visible is None or visible.dtype == torch.bool)
        and not (torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v)))
        and library.can_use_native(0, q, k, v, visible)
    )


def decode_attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, *, scale: float
) -> Tensor:
    """Compute attention for arguments that `can_use_decode_attention` accepts.

    Args:
        q: (B, heads, n, K) queries
        k: (B, kv_heads, S, K) keys, each shared by heads / kv_heads heads; any strides
        v: (B, kv_heads, S, K) values, likewise
        visible: broadcastable to (B, heads, n, S), True where a query may attend; None for all
        scale: factor of the logits

    Returns:
        (B, heads, n, K), in memory as (B, n, heads, K); zeros for a query without visible keys.
    """
    (batch, heads, count, dim), (_, kv_heads, keys, _) = q.shape, k.shape
    out = q.new_empty(batch, count, heads, dim).transpose(1, 2)
    views: list[int] = []  # address and strides of each tensor
    dense = [each if each.stride(3) == 1 else each.contiguous() for each in (q, k, v)]
    for each in (*dense, out):
        views += (each.data_ptr(), *each.stride()[:3])
    if visible is not None:
        visible = visible.expand(batch, heads, count, keys)
        views += (visible.data_ptr(), *visible.stride())
    arguments = DECODE_STRUCT.pack(
        batch, heads, kv_heads, count, keys, dim, scale, *views, *[0] * (21 - len(views))
    )
    if library.call_native("decode_attention", arguments):
        raise MemoryError("cannot allocate the workspace of attention")
    return out
