"""Base class of norms with a gain and a bias per feature."""

import torch
from torch import Tensor, nn

from addnorm.norms.base import Norm


class AffineNorm(Norm):
    """Norm that ends in `weight * y + bias`, one entry per feature; either may be absent.

    The constructor leaves the parameters uninitialized; a subclass calls `reset_parameters`.
    """

    def __init__(self, dim: int, *, affine: bool, bias: bool) -> None:
        super().__init__(dim)
        self.weight = nn.Parameter(torch.empty(dim)) if affine else None
        self.bias = nn.Parameter(torch.empty(dim)) if affine and bias else None

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def apply_affine(self, y: Tensor) -> Tensor:
        """Apply gain and bias to a normalized input, (..., dim)."""
        y = y if self.weight is None else y * self.weight
        return y if self.bias is None else y + self.bias
