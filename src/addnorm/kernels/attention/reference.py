"""Packed sequences, and what attention over them is, in plain torch."""

from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.core.errors import UserError


class SequenceOffsets(NamedTuple):
    """Where each of B sequences begins that stand end to end.

    >>> Bounds.of([3, 0, 2])
    Bounds(starts=tensor([0, 3, 3, 5], dtype=torch.int32), longest=3)
    """

    starts: Tensor
    """(B + 1), int32: the first token of each, and the number of all."""
    max_length: int
    """Tokens of the longest, or more."""

    @classmethod
    def from_lengths(
        cls, lengths: Iterable[int], device: torch.device | None = None
    ) -> "SequenceOffsets":
        """Those of sequences of such lengths."""
        lengths = list(lengths)
        starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
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
    """`varlen_attention` by torch's own: sequences of like length are padded, and packed again."""
    firsts, key_firsts = queries.starts.tolist(), keys.starts.tolist()
    lengths, key_lengths = (
        _sequence_lengths(firsts, q.shape[1]),
        _sequence_lengths(key_firsts, k.shape[1]),
    )
    if causal and lengths != key_lengths:
        raise causal_length_error()
    if scale <= 0:  # torch would multiply it with the -inf of what is hidden
        q, scale = q * scale, 1.0
    out = q.new_zeros(q.shape[1], q.shape[0], q.shape[2])
    for group in _group_by_length(lengths, key_lengths):
        rows, real = _padded_indices([(firsts[b], lengths[b]) for b in group], q.device)
        seen, valid = _padded_indices([(key_firsts[b], key_lengths[b]) for b in group], q.device)
        whole = bool(valid.all()) if valid.device.type == "cpu" else False
        mask = None if whole else valid[:, None, None, :]
        if causal and mask is not None:
            mask = mask & torch.ones_like(mask[0, 0, 0]).expand(mask.shape[-1], -1).tril()
        y = F.scaled_dot_product_attention(
            q[:, rows].transpose(0, 1),
            k[:, seen].transpose(0, 1),
            v[:, seen].transpose(0, 1),
            attn_mask=mask,
            is_causal=causal and mask is None,
            scale=scale,
            enable_gqa=len(k) < len(q),
        )  # (group, heads, L, K)
        out = out.index_copy(0, rows[real], y.transpose(1, 2)[real])
    return out.transpose(0, 1)


def offsets_error() -> UserError:
    """For starts that leave tokens out, or name others."""
    return UserError(
        "starts must go up from 0 to the number of tokens, one more than there are sequences; make "
        "them with Bounds.of(lengths)"
    )


def causal_length_error() -> UserError:
    """For causal attention over anything but the sequences themselves."""
    return UserError(
        "causal attention wants as many keys as queries in every sequence; leave out causal, or "
        "pass the same starts for both"
    )


def _sequence_lengths(starts: list[int], tokens: int) -> list[int]:
    lengths = [last - first for first, last in pairwise(starts)]
    if starts[0] != 0 or starts[-1] != tokens or min(lengths, default=0) < 0:
        raise offsets_error()
    return lengths


def _group_by_length(lengths: list[int], key_lengths: list[int]) -> list[list[int]]:
    """Sequences in groups in which little is padded; those without queries or keys in none."""
    size = [ours + theirs for ours, theirs in zip(lengths, key_lengths, strict=True)]
    groups: list[list[int]] = []
    for b in sorted(range(len(size)), key=size.__getitem__):
        if not lengths[b] or not key_lengths[b]:
            continue
        if not groups or size[b] > 1.25 * size[groups[-1][0]] + 8:
            groups.append([])
        groups[-1].append(b)
    return groups or [[]]  # one without sequences, so that the output knows its inputs


def _padded_indices(spans: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """(sequences, L) tokens, the last of a sequence again where it is over; and which are real."""
    firsts, lengths = (
        torch.tensor(spans, dtype=torch.int64, device=device).reshape(-1, 2, 1).unbind(1)
    )
    steps = torch.arange(max((length for _, length in spans), default=0), device=device)
    return firsts + torch.minimum(steps, lengths - 1), steps < lengths
