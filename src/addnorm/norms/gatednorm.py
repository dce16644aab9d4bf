"""GatedNorm: RMSNorm with a gate of low rank on its output."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.registry import Count, NonNegative
from addnorm.norms.base import Norm, register


@register(
    Card(
        name="gatednorm",
        title="GatedNorm",
        formula="y = n * sigmoid(up silu(down n)), n = weight * x / sqrt(mean(x ** 2) + eps)",
        paper="GatedNorm, in the technical report of A.X K2, 2026, arXiv 2601.22966",
        summary="Lets a small network decide feature by feature how much of a token passes.",
        undefined="The rank; it is 16 here unless given.",
    )
)
class GatedNorm(Norm):
    """Normalize each token and gate it by two small matrices.

    y = n * sigmoid(up silu(down n))
    n = weight * x / sqrt(mean(x ** 2) + eps)

    x, y: (..., dim)
    weight: (dim), starts at 1
    down: (rank, dim), starts at cosines of mean square 0.02^2, a row for each frequency
    up: (dim, rank), starts at 0

    Code: transformers, A.X K2. With up = 0 it is half of RMSNorm, which readers can absorb.
    """

    # NOTE[DIFF]: the released code draws both matrices from N(0, 0.02^2), so that the gate starts
    # near one half; here it starts at one half, and no norm draws random numbers.
    def __init__(self, dim: int, *, rank: Count = 16, eps: NonNegative = 1e-6) -> None:
        super().__init__(dim)
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))
        self.down = nn.Parameter(torch.empty(rank, dim))
        self.up = nn.Parameter(torch.empty(dim, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.up)
        rows, columns = (torch.arange(size) + 0.5 for size in self.down.shape)
        angles = math.pi / self.dim * rows[:, None] * columns
        with torch.no_grad():
            self.down.copy_(0.02 * 2**0.5 * angles.cos())

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        y = F.rms_norm(x, (self.dim,), self.weight.to(x.dtype), self.eps)
        if x.is_meta:
            return y * self._gate(y)
        with torch.autocast(x.device.type, enabled=False):  # it would round matrix products
            return y * self._gate(y)

    def _gate(self, y: Tensor) -> Tensor:
        hidden = F.silu(F.linear(y, self.down.to(y.dtype)))
        return F.linear(hidden, self.up.to(y.dtype)).sigmoid()
