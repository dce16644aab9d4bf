"""Attention of few queries, as when a text grows by a token: natively, without gradient.

out_i = sum over j of p_ij * v_j,    p_ij = exp(scale * q_i . k_j) / sum of the same over all j

torch's kernel works on squares of queries and keys, and a single query fills none of them. This one
goes over the keys that a query sees.
"""

import struct

import torch
from torch import Tensor

from addnorm.kernels import library

MAX_QUERIES, HEAD_DIM_MULTIPLE = 8, 16
"""Queries of a row up to which that is faster (`addnorm bench kernels`), and what divides the
features of a head then."""
DECODE_STRUCT = struct.Struct("@6qf" + 4 * "P3q" + "P4q")
"""`struct addnorm_few` of native/few.h."""


def can_use_decode_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> bool:
    """Whether the native library is to take these: few queries beside their keys, in float32, and
    nobody asks for a gradient or watches.
    """
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
    """(B, heads, n, K), in memory as (B, n, heads, K), of what `can` takes.

    q: (B, heads, n, K)
    k, v: (B, kv_heads, S, K), each serving heads / kv_heads heads; they need not be dense
    seen: broadcasts to (B, heads, n, S), True where a query may look; all of it if None

    A query that sees nothing gets zeros.
    """
    (batch, heads, count, dim), (_, kv_heads, keys, _) = q.shape, k.shape
    out = q.new_empty(batch, count, heads, dim).transpose(1, 2)
    at: list[int] = []
    held = [each if each.stride(3) == 1 else each.contiguous() for each in (q, k, v)]
    for each in (*held, out):
        at += (each.data_ptr(), *each.stride()[:3])
    if visible is not None:
        visible = visible.expand(batch, heads, count, keys)
        at += (visible.data_ptr(), *visible.stride())
    given = DECODE_STRUCT.pack(
        batch, heads, kv_heads, count, keys, dim, scale, *at, *[0] * (21 - len(at))
    )
    if library.call_native("decode_attention", given):
        raise MemoryError("no memory for the scratch of attention")
    return out
