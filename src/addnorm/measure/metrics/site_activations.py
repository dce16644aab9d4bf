"""Tensors that site metrics are computed from."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SiteActivations:
    """Activations at one site of one forward pass."""

    before: Tensor
    """(..., L, dim) stream before the write."""
    branch: Tensor
    """(..., L, dim) output of the sub-layer, after dropout."""
    stream: Tensor
    """(..., L, dim) stream after the write."""
    valid: Tensor | None
    """(..., L) True at valid tokens; None if all are valid."""
    logits: tuple[Tensor, ...]
    """(B, heads, L, S) logits of each attention in the sub-layer; -inf at hidden keys."""
    probabilities: tuple[Tensor, ...]
    """(B, heads, L, S) probabilities of each attention in the sub-layer."""


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of the values where `mask` is True; 0 if it is False everywhere.

    Unlike boolean indexing, this does not wait for the device.

    Args:
        values: (...) values.
        mask: broadcastable to `values`; None for all values.
    """
    if mask is None:
        return values.mean()
    mask = mask.expand_as(values)
    return values.masked_fill(~mask, 0.0).sum() / mask.sum().clamp_min(1)
