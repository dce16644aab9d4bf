"""No norm at all: the identity, for wirings that do without."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.norms.base import Norm, register


@register(
    Card(
        name="none",
        title="no norm",
        group="classic",
        formula="y = x",
        paper=(
            "Bachlechner et al., ReZero is All You Need: Fast Convergence at Large Depth, 2020, "
            "arXiv 2003.04887"
        ),
        summary="Identity: removes the norms of any wiring, as a baseline.",
    )
)
class NoNorm(Norm):
    """Return the input.

    y = x

    x, y: (..., dim)

    Bachlechner et al. 2020 train without norms; so do Fixup (Zhang et al. 2019) and T-Fixup (Huang
    et al. 2020). Under other wirings nothing bounds the stream.
    """

    gain = None

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        return x
