"""Masks, all of one convention: True at valid tokens, True where a query may attend.

torch.nn.MultiheadAttention and torch.nn.Transformer have the opposite one; weights and code that
come from there cross the border by name, with `from_torch_padding` and `from_torch_attention`.
"""

import torch
from torch import Tensor

from addnorm.core.errors import UserError


def padding_mask(lengths: Tensor, length: int | None = None) -> Tensor:
    """Valid tokens of right-padded sequences, (B, length); the longest sequence's length if None.

    >>> padding(torch.tensor([1, 3])).int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    places = torch.arange(_resolve_length(lengths, length), device=lengths.device)
    return places < lengths[:, None]


def is_right_padded(mask: Tensor) -> bool:
    """Whether all padding of a mask, (B, L), stands behind its sequence: the causal rule hides it.

    >>> ends(torch.tensor([[True, False], [True, True]])), ends(torch.tensor([[False, True]]))
    (True, False)
    """
    return bool((mask[:, 1:] <= mask[:, :-1]).all())


def causal_mask(length: int, past: int = 0, *, device: torch.device | None = None) -> Tensor:
    """Each of `length` tokens sees itself, those before it, and `past` older ones: (length, past +
    length).

    >>> causal(2, past=1).int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)


def window_mask(
    length: int, size: int, past: int = 0, *, device: torch.device | None = None
) -> Tensor:
    """Each of `length` tokens sees those less than `size` away on either side, and `past` older
    ones if they are: (length, past + length).

    >>> window(3, 2).int()
    tensor([[1, 1, 0],
            [1, 1, 1],
            [0, 1, 1]], dtype=torch.int32)
    """
    queries = torch.arange(past, past + length, device=device)
    keys = torch.arange(past + length, device=device)
    return (queries[:, None] - keys).abs() < size


def full_mask(length: int, *, device: torch.device | None = None) -> Tensor:
    """Every token sees every token, (length, length)."""
    return torch.ones(length, length, dtype=torch.bool, device=device)


def prefix_mask(lengths: Tensor, length: int | None = None) -> Tensor:
    """Every token sees the whole prefix of its sequence, itself and what is before it: (B, length,
    length).

    Raffel et al., Exploring the Limits of Transfer Learning, 2020, arXiv 1910.10683, figure 3.

    >>> prefix(torch.tensor([2]), 3).int()
    tensor([[[1, 1, 0],
             [1, 1, 0],
             [1, 1, 1]]], dtype=torch.int32)
    """
    inside = padding_mask(lengths, length)
    return inside[:, None, :] | causal_mask(inside.shape[-1], device=inside.device)


def from_torch_padding(key_padding_mask: Tensor) -> Tensor:
    """torch's key_padding_mask (True at padding, or -inf at padding) as ours (True at valid)."""
    return _from_torch("key_padding_mask", key_padding_mask)


def from_torch_attention(attn_mask: Tensor) -> Tensor:
    """torch's attn_mask (True where attention is forbidden, or 0 and -inf) as our `visible`."""
    return _from_torch("attn_mask", attn_mask)


def _from_torch(name: str, mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return ~mask
    if mask.is_floating_point() and bool(((mask == 0) | (mask == -torch.inf)).all()):
        return mask == 0
    raise UserError(
        f"{name} must be boolean or floating point of 0 and -inf, got {mask.dtype}; a mask of 1 "
        "and 0 is mask.bool(), and what 1 means decides whether it is to be negated"
    )


def _resolve_length(lengths: Tensor, length: int | None) -> int:
    if lengths.ndim != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise UserError(
            f"lengths must be whole numbers, one a sequence, got {lengths.dtype} of shape "
            f"{tuple(lengths.shape)}"
        )
    longest = max(lengths.tolist(), default=0)
    length = longest if length is None else length
    if longest > length:
        raise UserError(f"a sequence of {longest} tokens does not fit into length {length}")
    return length
