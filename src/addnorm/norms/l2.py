"""L2 normalization: every token on the unit sphere."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.registry import Positive
from addnorm.norms.base import Norm, register
from addnorm.norms.statistics import l2_normalize


@register(
    Card(
        name="l2",
        title="L2 normalization",
        group="classic",
        formula="y = x / max(|x|, eps)",
        paper=(
            "Loshchilov et al., nGPT: Normalized Transformer with Representation Learning on the "
            "Hypersphere, 2024, arXiv 2410.01131"
        ),
        summary="Unit length and nothing learned; the norm of nGPT and of cosine attention.",
        reduces_to=(("l2", "fixnorm"),),
    )
)
class L2Norm(Norm):
    """Divide each token by its length.

    y = x / max(|x|, eps)

    x, y: (..., dim)
    eps: a floor for the length, not an addend: a zero token stays zero

    Loshchilov et al. 2024, section 2. Pitfall: features have size 1 / sqrt(dim), not 1.
    """

    gain = None

    # NOTE[DIFF]: nGPT's released code has no floor and returns NaN for a zero token; 1e-12 is the
    # floor of torch.nn.functional.normalize.
    def __init__(self, dim: int, *, eps: Positive = 1e-12) -> None:
        super().__init__(dim)
        self.eps = eps

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        return l2_normalize(x, eps=self.eps)
