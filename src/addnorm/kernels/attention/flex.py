"""Attention over packed sequences with torch's flex attention, for GPUs and dtypes without flash.

A mask says which keys a query sees: those of its own sequence. Blocks of the mask that are empty
are skipped, so that padding and other sequences cost nothing. On a GPU the kernel is compiled once
for all sizes; on a CPU, where tests compare it with the definition, it runs uncompiled.

Dong et al., Flex Attention: A Programming Model for Generating Optimized Attention Kernels, 2024,
arXiv 2412.05496.
"""

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from addnorm.kernels.attention.reference import SequenceOffsets
from addnorm.kernels.library import is_eager

MIN_HEAD_DIM, MAX_HEAD_DIM = 16, 256
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_MASKS = WeakTensorKeyDictionary()
"""Masks of sequences whose starts are in memory: all layers of a batch use the same."""


def can_use_flex(q: Tensor, k: Tensor, dtype: torch.dtype) -> bool:
    """Return whether flex attention runs on a GPU for these tensors, in a dtype."""
    width = q.shape[-1]
    return (
        q.device.type == "cuda"
        and dtype in DTYPES
        and MIN_HEAD_DIM <= width <= MAX_HEAD_DIM
        and width & (width - 1) == 0  # a power of 2
        and min(q.shape[1], k.shape[1]) > 0
        and is_eager()
        and _is_available()
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
    )


def flex_varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: SequenceOffsets,
    keys: SequenceOffsets,
    *,
    causal: bool,
    scale: float,
) -> Tensor:
    """Compute `varlen_attention`; arguments and result are the same."""
    from torch.nn.attention.flex_attention import flex_attention

    run = _compile(flex_attention) if q.device.type == "cuda" else flex_attention
    out: Tensor = run(
        q[None],
        k[None],
        v[None],
        block_mask=_find_mask(queries, keys, q.shape[1], k.shape[1], causal=causal),
        scale=scale,
        enable_gqa=len(k) < len(q),
    )
    return out[0].transpose(0, 1).contiguous().transpose(0, 1)


@cache
def _is_available() -> bool:
    return os.environ.get("ADDNORM_FLEX", "") != "off" and find_spec("triton") is not None


@cache
def _compile(function: Any) -> Any:
    # The number of tokens differs from batch to batch.
    return torch.compile(function, dynamic=True)


def _find_mask(
    queries: SequenceOffsets, keys: SequenceOffsets, rows: int, columns: int, *, causal: bool
) -> Any:
    """Return the mask of these sequences, built if it is not in memory."""
    # Weak keys twice: a value that held the starts would keep its own key alive.
    by_keys = _MASKS.setdefault(queries.starts, WeakTensorKeyDictionary())
    masks: dict[bool, Any] = by_keys.setdefault(keys.starts, {})
    if causal not in masks:
        masks[causal] = _build_mask(queries.starts, keys.starts, rows, columns, causal=causal)
    return masks[causal]


def _build_mask(
    query_starts: Tensor, key_starts: Tensor, rows: int, columns: int, *, causal: bool
) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    query_sequence, query_index = _locate_tokens(query_starts, rows)
    key_sequence, key_index = _locate_tokens(key_starts, columns)

    def sees(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        same = query_sequence[row] == key_sequence[column]
        return same & (key_index[column] <= query_index[row]) if causal else same

    build = _compile(create_block_mask) if query_starts.is_cuda else create_block_mask
    return build(sees, None, None, rows, columns, device=query_starts.device)


def _locate_tokens(starts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the number of the sequence of each token, and its index there."""
    tokens = torch.arange(count, dtype=starts.dtype, device=starts.device)
    sequence = torch.searchsorted(starts[1:].contiguous(), tokens, right=True)
    return sequence, tokens - starts[sequence]
