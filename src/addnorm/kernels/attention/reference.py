"""Packed sequences, and attention over them in plain torch.

Packed sequences are concatenated along the token axis without padding; `SequenceOffsets` says where
each one begins. `padded_attention` is the definition of `varlen_attention`: it gathers sequences of
similar length into padded batches, calls torch's attention, and scatters the results back.
"""

from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.kernels.host_copies import to_device


class SequenceOffsets(NamedTuple):
    """Boundaries of B packed sequences.

    >>> SequenceOffsets.from_lengths([3, 0, 2])
    SequenceOffsets(starts=tensor([0, 3, 3, 5], dtype=torch.int32), max_length=3)
    """

    starts: Tensor
    """(B + 1), int32: index of the first token of each sequence, then the number of tokens."""
    max_length: int
    """Length of the longest sequence, or an upper bound."""

    @classmethod
    def from_lengths(
        cls, lengths: Iterable[int], device: torch.device | None = None
    ) -> "SequenceOffsets":
        """Build the offsets of sequences with the given lengths."""
        lengths = list(lengths)
        starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        starts = starts if device is None else to_device(starts, device)
        return cls(starts, max(lengths, default=0))


def padded_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: SequenceOffsets,
    keys: SequenceOffsets,
    *,
    causal: bool,
    scale: float,
) -> Tensor:
    """Compute `varlen_attention` with torch's attention on padded groups of sequences."""
    firsts, key_firsts = queries.starts.tolist(), keys.starts.tolist()
    lengths, key_lengths = (
        _sequence_lengths(firsts, q.shape[1]),
        _sequence_lengths(key_firsts, k.shape[1]),
    )
    if causal and lengths != key_lengths:
        raise causal_length_error()
    if scale <= 0:  # torch would multiply the mask's -inf with it
        q, scale = q * scale, 1.0
    out = q.new_zeros(q.shape[1], q.shape[0], q.shape[2])
    for group in _group_by_length(lengths, key_lengths):
        rows, is_query = _padded_indices([(firsts[b], lengths[b]) for b in group], q.device)
        columns, is_key = _padded_indices(
            [(key_firsts[b], key_lengths[b]) for b in group], q.device
        )
        no_padding = bool(is_key.all()) if is_key.device.type == "cpu" else False
        mask = None if no_padding else is_key[:, None, None, :]
        if causal and mask is not None:
            mask = mask & torch.ones_like(mask[0, 0, 0]).expand(mask.shape[-1], -1).tril()
        y = F.scaled_dot_product_attention(
            q[:, rows].transpose(0, 1),
            k[:, columns].transpose(0, 1),
            v[:, columns].transpose(0, 1),
            attn_mask=mask,
            is_causal=causal and mask is None,
            scale=scale,
            enable_gqa=len(k) < len(q),
        )  # (group, heads, L, K)
        out = out.index_copy(0, rows[is_query], y.transpose(1, 2)[is_query])
    return out.transpose(0, 1)


def offsets_error() -> UserError:
    """Return the error for starts that do not cover the tokens."""
    return UserError(
        "starts: expected sequences + 1 values that rise from 0 to the number of tokens; build "
        "them with SequenceOffsets.from_lengths(lengths)"
    )


def causal_length_error() -> UserError:
    """Return the error for causal attention between sequences of different lengths."""
    return UserError(
        "causal=True: expected as many keys as queries in every sequence; pass the same starts for "
        "both, or causal=False"
    )


def _sequence_lengths(starts: list[int], tokens: int) -> list[int]:
    lengths = [last - first for first, last in pairwise(starts)]
    if starts[0] != 0 or starts[-1] != tokens or min(lengths, default=0) < 0:
        raise offsets_error()
    return lengths


def _group_by_length(lengths: list[int], key_lengths: list[int]) -> list[list[int]]:
    """Group sequences so that little is padded; leave out those without queries or keys."""
    size = [sum(pair) for pair in zip(lengths, key_lengths, strict=True)]
    groups: list[list[int]] = []
    for b in sorted(range(len(size)), key=size.__getitem__):
        if not lengths[b] or not key_lengths[b]:
            continue
        if not groups or size[b] > 1.25 * size[groups[-1][0]] + 8:
            groups.append([])
        groups[-1].append(b)
    return groups or [[]]  # an empty group, so that the output depends on q, k and v


def _padded_indices(spans: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token indices (sequences, L), padded with the last token, and which are valid."""
    firsts, lengths = (
        torch.tensor(spans, dtype=torch.int64, device=device).reshape(-1, 2, 1).unbind(1)
    )
    steps = torch.arange(max((length for _, length in spans), default=0), device=device)
    return firsts + torch.minimum(steps, lengths - 1), steps < lengths
