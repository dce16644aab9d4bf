"""CompleteP: settings that carry over to another width and depth."""

from addnorm.core.cards import Card
from addnorm.core.registry import Finite
from addnorm.scales.base import Depth, Scale, Width, register


@register(
    Card(
        name="completep",
        title="CompleteP",
        formula=(
            "x <- x + f(N(x)) / m_L; matrices: start / sqrt(m), Adam rate / m, decay * m, "
            "epsilon / (m m_L); logits / m"
        ),
        paper=(
            "Dey et al., Don't be lazy: CompleteP enables compute-efficient deep transformers, "
            "2025, arXiv 2505.01618"
        ),
        summary="muP for the width, and branches divided by the depth, so that every layer learns.",
    )
)
class CompleteP(Scale):
    """muP, and branches that fall with the depth.

    x_next = x + m_L ** -1 * f(N(x))
    start, Adam rate, decay and epsilon of matrices = base's / sqrt(m), / m, * m, / (m m_L)
    logits = base's / m

    m_L: depth / base_depth
    m: dim / base_dim, with the rules of `mup`
    decay_exponent: decay * m ** decay_exponent; 1 keeps rate * decay

    Dey et al. 2025, table 1 with alpha = 1. Constants and initial weights that a wiring computes
    from its depth are those of base_depth.
    """

    # NOTE[DIFF]: the paper scales epsilon in residual blocks only; gradients of embedding and head
    # fall with the width, too, so their epsilon is divided by m.
    required = ("base_dim", "base_depth")
    depth_exponent = 1.0

    def __init__(
        self,
        *,
        base_dim: Width | None = None,
        base_depth: Depth | None = None,
        base_head_dim: Width | None = None,
        base_ffn_dim: Width | None = None,
        decay_exponent: Finite = 1.0,
    ) -> None:
        super().__init__(
            base_dim=base_dim,
            base_depth=base_depth,
            base_head_dim=base_head_dim,
            base_ffn_dim=base_ffn_dim,
            decay_exponent=decay_exponent,
        )
