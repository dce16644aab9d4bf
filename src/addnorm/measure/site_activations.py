"""What a question about a forward gets to see."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SiteActivations:
    """One site in one forward; gone when the next site is reached."""

    before: Tensor
    """The trunk as the write finds it, (..., L, dim)."""
    branch: Tensor
    """What the sub-layer returned, after dropout, (..., L, dim)."""
    stream: Tensor
    """The trunk after the write, (..., L, dim)."""
    valid: Tensor | None
    """(..., L), True at valid tokens; None if all are."""
    logits: tuple[Tensor, ...]
    """Of each attention inside, (B, heads, L, S); -inf where a query may not look."""
    probabilities: tuple[Tensor, ...]
    """Of each attention inside, (B, heads, L, S)."""


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of the values at which `where` is True, of all if None; 0 if there are none.

    Does not wait for the device, as picking the values would.
    """
    if mask is None:
        return values.mean()
    mask = mask.expand_as(values)
    return values.masked_fill(~mask, 0.0).sum() / mask.sum().clamp_min(1)
