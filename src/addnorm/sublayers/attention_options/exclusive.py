"""Exclusive self-attention: heads return nothing along the token's own value."""

from torch import Tensor

from addnorm.norms.statistics import l2_normalize


def remove_own_value(heads: Tensor, values: Tensor) -> Tensor:
    """Return o - (o . u) u, u the direction of the token's own value.

    Zhai, Exclusive Self Attention, 2026, arXiv 2603.09078.

    Args:
        heads: (B, heads, L, K) outputs of the heads
        values: (B, kv_heads, L, K) values of the same tokens
    """
    repeat = heads.shape[1] // values.shape[1]
    unit = l2_normalize(values).repeat_interleave(repeat, 1)
    return heads - (heads * unit).sum(-1, keepdim=True) * unit
