"""Packing: the valid tokens of a padded batch as one sequence without padding.

Token-wise layers then process only valid tokens. Attention finds the sequences through `offsets`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.kernels.attention.reference import SequenceOffsets
from addnorm.kernels.host_copies import recall, to_device
from addnorm.sublayers import masks


@dataclass(frozen=True)
class Packing:
    """Positions of the N valid tokens of a batch.

    mask: (B, L), True at valid tokens
    index: (N), indices of the valid tokens in the flattened batch

    >>> packing = Packing.from_mask(torch.tensor([[True, False], [True, True]]))
    >>> packed = packing.pack(torch.tensor([[1, 0], [2, 3]]))
    >>> packed, packing.unpack(packed)
    (tensor([[1, 2, 3]]), tensor([[1, 0],
            [2, 3]]))
    """

    mask: Tensor
    index: Tensor

    @classmethod
    def from_mask(cls, mask: Tensor) -> "Packing":
        """Build the packing of a mask, (B, L), True at valid tokens."""
        if mask.dtype != torch.bool or mask.ndim != 2:
            raise UserError(
                "mask: expected boolean of shape (B, L), True at valid tokens, got "
                f"{mask.dtype} of shape {tuple(mask.shape)}"
            )
        host = recall(mask)
        index = (mask if host is None else host).flatten().nonzero().squeeze(1)
        return cls(mask, index if host is None else to_device(index, mask.device))

    @property
    def num_tokens(self) -> int:
        """Number of valid tokens, N."""
        return len(self.index)

    @cached_property
    def right_padded(self) -> bool:
        """Whether all padding follows its sequence, so that a causal mask hides it."""
        return masks.is_right_padded(self.mask)

    @cached_property
    def offsets(self) -> SequenceOffsets:
        """Offsets of the sequences among the valid tokens."""
        host = recall(self.mask)
        lengths = (self.mask if host is None else host).sum(1).tolist()
        return SequenceOffsets.from_lengths(lengths, device=self.mask.device)

    def pack(self, x: Tensor, *, dim: int = 1) -> Tensor:
        """Return the valid tokens: (B, L, ...) to (1, N, ...). dim: the axis of the tokens."""
        x = x.transpose(1, dim)
        if x.shape[:2] != self.mask.shape:
            raise UserError(
                f"x: expected a batch of shape {tuple(self.mask.shape)}, got {tuple(x.shape[:2])}"
            )
        packed: Tensor = _Pack.apply(x.flatten(0, 1), self.index)  # type: ignore[no-untyped-call]
        return packed.unsqueeze(0).transpose(1, dim)

    def unpack(self, x: Tensor, *, dim: int = 1) -> Tensor:
        """Restore the padding, as zeros: (1, N, ...) to (B, L, ...). dim: the axis of the
        tokens."""
        x = x.transpose(1, dim)
        padded: Tensor = _Unpack.apply(x.squeeze(0), self.index, self.mask.numel())  # type: ignore[no-untyped-call]
        return padded.view(*self.mask.shape, *x.shape[2:]).transpose(1, dim)

    def key_visibility(self, visible: Tensor | None, causal: bool) -> tuple[Tensor | None, bool]:
        """Return the mask for unpacked keys, and whether the kernel's own causal mask suffices."""
        if causal and self.right_padded:
            return visible, True
        seen = self.mask[:, None, None, :]
        if causal:
            seen = seen & masks.causal_mask(self.mask.shape[1], device=seen.device)
        return seen if visible is None else visible & seen, False


class _Pack(torch.autograd.Function):
    """index_select with unique indices, whose backward need not accumulate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.size = len(x)
        ctx.save_for_backward(index)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return _Unpack.apply(grad_output, index, ctx.size), None  # type: ignore[no-untyped-call]


class _Unpack(torch.autograd.Function):
    """Inverse of `_Pack`, with zeros at all other rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(index)
        padded = x.new_zeros(size, *x.shape[1:])
        padded[index] = x
        return padded

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return _Pack.apply(grad_output, index), None, None  # type: ignore[no-untyped-call]
