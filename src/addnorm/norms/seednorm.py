"""SeeDNorm: RMSNorm whose gain depends on the token."""

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import Count, Finite, NonNegative
from addnorm.norms.base import Norm, register
from addnorm.norms.statistics import root_mean_square


@register(
    Card(
        name="seednorm",
        title="SeeDNorm",
        formula="y = (alpha * tanh(x . beta) + weight) * x / sqrt(mean(x ** 2) + eps)",
        paper="Cai et al., SeeDNorm: Self-Rescaled Dynamic Normalization, 2025, arXiv 2510.22777",
        summary="Lets part of the size that RMSNorm removes return through a bounded factor.",
        reduces_to=(("seednorm", "rms"), ("seednorm(heads=2)", "rms")),
        undefined="The eps; it is that of rms here.",
    )
)
class SeeDNorm(Norm):
    """Scale each normalized token by a factor of the raw one.

    y = (alpha * tanh(x . beta) + weight) * x / sqrt(mean(x ** 2) + eps)

    x, y: (..., dim)
    weight: (dim), starts at 1
    alpha: (dim), starts at 1, or at the option's value
    beta: (heads, dim / heads), starts at 0; head h reads and scales its own slice of x

    Cai et al. 2025. Equal to RMSNorm at the start. At the first step only weight and beta have a
    gradient. Not scale invariant once beta moves. In vision the paper has 16 heads.
    """

    # NOTE[DIFF]: no code was released; formula and start values are those of a port and a digest
    # of the paper, which agree. The dropout on the dynamic part in vision is omitted.
    # NOTE[DIFF]: the paper decays alpha and beta; here beta decays and alpha, a vector, does not.
    def __init__(
        self, dim: int, *, heads: Count = 1, alpha: Finite = 1.0, eps: NonNegative = 1e-6
    ) -> None:
        super().__init__(dim)
        if dim % heads:
            raise UserError(f"heads: expected a divisor of dim={dim}, got {heads}")
        self.start, self.eps = alpha, eps
        self.weight = nn.Parameter(torch.empty(dim))
        self.alpha = nn.Parameter(torch.empty(dim))
        self.beta = nn.Parameter(torch.empty(heads, dim // heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.constant_(self.alpha, self.start)
        nn.init.zeros_(self.beta)

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        # A product and a sum, not a matrix product, which autocast would round.
        slices = x.unflatten(-1, self.beta.shape)
        factor = (slices * self.beta.to(x.dtype)).sum(-1, keepdim=True).tanh()
        dynamic = factor * self.alpha.to(x.dtype).view(self.beta.shape)
        gain = dynamic.flatten(-2) + self.weight.to(x.dtype)
        return gain * (x / root_mean_square(x, eps=self.eps, eps_mode="inside"))
