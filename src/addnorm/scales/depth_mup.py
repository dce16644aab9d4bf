"""Depth-muP: settings that carry over to another depth, with branches divided by its root."""

from addnorm.core.cards import Card
from addnorm.core.registry import Finite
from addnorm.scales.base import Depth, Scale, Width, register


@register(
    Card(
        name="depth_mup",
        title="Depth-muP",
        formula="x <- x + f(N(x)) / sqrt(m_L); Adam rate in layers / sqrt(m_L)",
        paper=(
            "Yang et al., Tensor Programs VI: Feature Learning in Infinite-Depth Neural Networks, "
            "2023, arXiv 2310.02244"
        ),
        summary="Keeps the sum of all branches independent of the depth; each one learns less.",
    )
)
class DepthMuP(Scale):
    """Branches and their rates fall with the square root of the depth.

    x_next = x + m_L ** -(1 / 2) * f(N(x))
    Adam rate and epsilon of parameters in layers = base's * m_L ** -(1 / 2)

    m_L: depth / base_depth
    m: dim / base_dim, with the rules of `mup`; 1 unless base_dim is given

    Yang et al. 2023, table 1. Optimal for blocks of one matrix; `completep` has the exponent 1.
    Constants and initial weights that a wiring computes from its depth are those of base_depth.
    """

    required = ("base_depth",)
    depth_exponent = 0.5

    def __init__(
        self,
        *,
        base_depth: Depth | None = None,
        base_dim: Width | None = None,
        base_head_dim: Width | None = None,
        base_ffn_dim: Width | None = None,
        decay_exponent: Finite = 1.0,
    ) -> None:
        super().__init__(
            base_depth=base_depth,
            base_dim=base_dim,
            base_head_dim=base_head_dim,
            base_ffn_dim=base_ffn_dim,
            decay_exponent=decay_exponent,
        )
