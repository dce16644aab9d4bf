"""Gate on the outputs of the heads."""

import torch
from torch import Tensor, nn

from addnorm.kernels.linear import apply_linear

GATES = ("none", "element", "head")


class OutputGate(nn.Module):
    """Sigmoid gate of the heads' outputs, computed from what attention reads.

    o <- o * sigmoid(W h)

    o: (B, heads, L, K) outputs of the heads, before the output projection
    h: (B, L, dim) input of the queries
    W: (heads * K, dim) for gate="element", (heads, dim) for gate="head"; no bias

    Qiu et al., Gated Attention for Large Language Models, 2025, arXiv 2505.06708. Drawn like every
    other matrix, so that gates start near one half. W = 0 and the output projection doubled is
    attention without a gate.
    """

    def __init__(self, dim: int, heads: int, head_dim: int, kind: str) -> None:
        super().__init__()
        self.heads = heads
        self.proj = nn.Linear(dim, heads * (head_dim if kind == "element" else 1), bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """Return the gates, (B, heads, L, K) or (B, heads, L, 1)."""
        gates = torch.sigmoid(apply_linear(self.proj, h))
        return gates.unflatten(-1, (self.heads, -1)).transpose(1, 2)
