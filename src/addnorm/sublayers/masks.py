"""Boolean masks: True at valid tokens, and True where a query may attend.

torch.nn.MultiheadAttention and torch.nn.Transformer use the opposite convention. Convert their
masks with `from_torch_padding` and `from_torch_attention`.
"""

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.kernels.host_copies import recall


def padding_mask(lengths: Tensor, length: int | None = None) -> Tensor:
    """Return the mask (B, length) of right-padded sequences, by default with the longest's length.

    >>> padding_mask(torch.tensor([1, 3])).int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    positions = torch.arange(_resolve_length(lengths, length), device=lengths.device)
    return positions < lengths[:, None]


def is_right_padded(mask: Tensor) -> bool:
    """Return whether all padding of a mask, (B, L), follows its sequence: a causal mask hides it.

    >>> is_right_padded(torch.tensor([[True, False], [True, True]]))
    True
    >>> is_right_padded(torch.tensor([[False, True]]))
    False
    """
    known = recall(mask)
    mask = mask if known is None else known
    return bool((mask[:, 1:] <= mask[:, :-1]).all())


def causal_mask(length: int, past: int = 0, *, device: torch.device | None = None) -> Tensor:
    """Return the causal mask (length, past + length) of new tokens after `past` older ones.

    >>> causal_mask(2, past=1).int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)


def window_mask(
    length: int, size: int, past: int = 0, *, device: torch.device | None = None
) -> Tensor:
    """Return the mask (length, past + length) of a window: True at a distance below `size`.

    >>> window_mask(3, 2).int()
    tensor([[1, 1, 0],
            [1, 1, 1],
            [0, 1, 1]], dtype=torch.int32)
    """
    queries = torch.arange(past, past + length, device=device)
    keys = torch.arange(past + length, device=device)
    return (queries[:, None] - keys).abs() < size


def prefix_mask(lengths: Tensor, length: int | None = None) -> Tensor:
    """Return the mask (B, length, length) of prefix language models.

    Every token sees the whole prefix of its sequence, itself, and the tokens before it.

    Raffel et al., Exploring the Limits of Transfer Learning, 2020, arXiv 1910.10683, figure 3.

    >>> prefix_mask(torch.tensor([2]), 3).int()
    tensor([[[1, 1, 0],
             [1, 1, 0],
             [1, 1, 1]]], dtype=torch.int32)
    """
    inside = padding_mask(lengths, length)
    return inside[:, None, :] | causal_mask(inside.shape[-1], device=inside.device)


def from_torch_padding(key_padding_mask: Tensor) -> Tensor:
    """Convert torch's key_padding_mask (True or -inf at padding) to a mask (True at valid)."""
    return _from_torch("key_padding_mask", key_padding_mask)


def from_torch_attention(attn_mask: Tensor) -> Tensor:
    """Convert torch's attn_mask (True or -inf where attention is forbidden) to `visible`."""
    return _from_torch("attn_mask", attn_mask)


def _from_torch(name: str, mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return ~mask
    if mask.is_floating_point() and bool(((mask == 0) | (mask == -torch.inf)).all()):
        return mask == 0
    raise UserError(
        f"{name}: expected boolean, or floating point with values 0 and -inf, got {mask.dtype}; "
        "convert a mask of 1 and 0 with mask.bool(), and negate it if 1 means valid"
    )


def _resolve_length(lengths: Tensor, length: int | None) -> int:
    if lengths.ndim != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise UserError(
            f"lengths: expected integers of shape (B,), got {lengths.dtype} of shape "
            f"{tuple(lengths.shape)}"
        )
    if length is not None and torch.compiler.is_compiling():
        return length  # the lengths are not known
    longest = max(lengths.tolist(), default=0)
    length = longest if length is None else length
    if longest > length:
        raise UserError(f"length: expected at least {longest}, the longest sequence, got {length}")
    return length
