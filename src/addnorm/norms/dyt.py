"""Dynamic Tanh: no statistics, a squashing function instead of a norm."""

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.registry import Positive
from addnorm.kernels.norm import dyt
from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import register


@register(
    Card(
        name="dyt",
        title="DyT",
        group="dynamic",
        formula="y = weight * tanh(alpha * x) + bias",
        paper="Zhu et al., Transformers without Normalization, 2025, arXiv 2503.10622",
        summary=(
            "Bounds every feature by itself, without means; made for Pre-LN, where a stream that "
            "grows with depth saturates it."
        ),
    )
)
class DyT(AffineNorm):
    """Squash every feature by a tanh of learned slope.

    y = weight * tanh(alpha * x) + bias

    x, y: (..., dim)
    alpha: scalar, starts at the option's value
    weight: (dim), starts at 1; absent with affine=False
    bias: (dim), starts at 0; absent with bias=False or affine=False

    Zhu et al. 2025, section 4. The authors' LLaMA has bias=False, smaller alpha in wider models and
    a learned factor, started at sqrt(dim), on the embeddings. Not scale invariant.
    """

    def __init__(
        self, dim: int, *, alpha: Positive = 0.5, affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__(dim, affine=affine, bias=bias)
        self.slope = alpha
        self.alpha = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.alpha, self.slope)

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        return dyt(x, self.alpha, self.weight, self.bias)
