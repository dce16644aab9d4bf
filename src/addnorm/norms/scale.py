"""ScaleNorm: every token on one sphere, whose radius is learned."""

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.registry import Positive
from addnorm.norms.base import Norm, register
from addnorm.norms.statistics import l2_normalize


@register(
    Card(
        name="scale",
        title="ScaleNorm",
        group="classic",
        formula="y = g * x / max(|x|, eps)",
        paper=(
            "Nguyen and Salazar, Transformers without Tears: Improving the Normalization of "
            "Self-Attention, 2019, arXiv 1910.05895"
        ),
        summary=(
            "One learned radius instead of a gain per feature; equals RMSNorm with a shared gain"
            " g / sqrt(dim)."
        ),
        reduces_to=(("scale", "rms"),),
    )
)
class ScaleNorm(Norm):
    """L2 normalization with a single learned radius.

    y = g * x / max(|x|, eps)

    x, y: (..., dim)
    g: scalar, starts at sqrt(dim), not decayed
    eps: a floor for the length, not an addend: a zero token stays zero

    Nguyen and Salazar 2019, eq. 5.
    """

    gain = "g"

    # NOTE[DIFF]: a token of zeros gets no gradient; by the formula it would be g / eps, which
    # overflows float16.
    def __init__(self, dim: int, *, eps: Positive = 1e-5) -> None:
        super().__init__(dim)
        self.eps = eps
        self.g = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # The length of a token whose features have unit variance.
        nn.init.constant_(self.g, self.dim**0.5)

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        return self.g * l2_normalize(x, eps=self.eps)
