"""Value residual: layers mix their values with those of the first layer."""

import torch
from torch import Tensor, nn

from addnorm.kernels.linear import apply_linear

VALUE_RESIDUALS = ("none", "half", "scalar", "token")


class ValueResidual(nn.Module):
    """Mixture of a layer's values with those of the first layer.

    v <- v_0 + m * (v - v_0)

    v, v_0: (B, kv_heads, L, K) values of this layer and of the first
    m: 1 / 2 for "half"; scalar, starts at 0.5, for "scalar"; sigmoid(W h + b) for "token"
    W, b: (kv_heads, dim) and (kv_heads), start as in torch.nn.Linear; only for "token"

    Zhou et al., Value Residual Learning, 2024, arXiv 2410.17897; scalar: modded-nanogpt, 2024;
    token: x-transformers.
    """

    def __init__(self, dim: int, kv_heads: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.empty(())) if kind == "scalar" else None
        self.proj = nn.Linear(dim, kv_heads) if kind == "token" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the start values."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 0.5)
        if self.proj is not None:
            self.proj.reset_parameters()

    def forward(self, v: Tensor, first: Tensor, h: Tensor) -> Tensor:
        """Return the mixed values."""
        return first + self._own_fraction(h).to(v.dtype) * (v - first)

    def _own_fraction(self, h: Tensor) -> Tensor:
        if self.proj is not None:
            return torch.sigmoid(apply_linear(self.proj, h)).transpose(1, 2).unsqueeze(-1)
        return h.new_full((), 0.5) if self.weight is None else self.weight
