"""Dynamic erf: as DyT, with the error function and a learned shift."""

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.registry import Positive
from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import register


@register(
    Card(
        name="derf",
        title="Derf",
        group="dynamic",
        formula="y = weight * erf(alpha * x + shift) + bias",
        paper=("Chen et al., Stronger Normalization-Free Transformers, 2025, arXiv 2512.10938"),
        summary="The winner of a search among squashing functions; steeper at 0 than DyT.",
    )
)
class Derf(AffineNorm):
    """Squash every feature by an error function of learned slope and place.

    y = weight * erf(alpha * x + shift) + bias

    x, y: (..., dim)
    alpha: scalar, starts at the option's value
    shift: scalar, starts at 0
    weight: (dim), starts at 1; absent with affine=False
    bias: (dim), starts at 0; absent with bias=False or affine=False

    Chen et al. 2025. The slope at 0 is 2 / sqrt(pi) times that of DyT with the same alpha.
    """

    # NOTE[DIFF]: alpha starts at 0.5; the authors' GPT-2 code has 1 as its default and sets it for
    # attention, feed-forward and final norm apart.
    def __init__(
        self, dim: int, *, alpha: Positive = 0.5, affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__(dim, affine=affine, bias=bias)
        self.slope = alpha
        self.alpha = nn.Parameter(torch.empty(()))
        self.shift = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.alpha, self.slope)
        nn.init.zeros_(self.shift)

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        return self.apply_affine(torch.erf(self.alpha * x + self.shift))
