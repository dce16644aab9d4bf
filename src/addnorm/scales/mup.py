"""muP: settings that carry over to another width."""

from addnorm.core.cards import Card
from addnorm.core.registry import Finite
from addnorm.scales.base import Scale, Width, register


@register(
    Card(
        name="mup",
        title="Maximal update parametrization (muP)",
        formula=(
            "matrices: start / sqrt(m), Adam rate / m, decay * m; logits / m; "
            "q . k * sqrt(K_base) / K"
        ),
        paper=(
            "Yang et al., Tensor Programs V: Tuning Large Neural Networks via Zero-Shot "
            "Hyperparameter Transfer, 2022, arXiv 2203.03466"
        ),
        summary="The best learning rate of a narrow model stays best for a wide one.",
    )
)
class MuP(Scale):
    """Width only: every layer of a wide model changes as much as that of the base.

    start, Adam rate, decay and epsilon of matrices = base's / sqrt(m), / m, * m, / m
    logits = base's / m;  attention logits = q . k * sqrt(K_base) / K

    m: dim / base_dim; of ffn_out, ffn_dim / base_ffn_dim if that is given
    K: width of a head, K_base that of the base: base_head_dim, or as many heads in the base
    decay_exponent: decay * m ** decay_exponent; 1 keeps rate * decay

    Yang et al. 2022, table 8; epsilon: Dey et al. 2025, arXiv 2505.01618, table 1. Depth is not
    scaled.
    """

    # NOTE[DIFF]: factors are those of the base model as it is built here, so that at the base size
    # nothing changes; the paper writes them without a base.
    required = ("base_dim",)

    def __init__(
        self,
        *,
        base_dim: Width | None = None,
        base_head_dim: Width | None = None,
        base_ffn_dim: Width | None = None,
        decay_exponent: Finite = 1.0,
    ) -> None:
        super().__init__(
            base_dim=base_dim,
            base_head_dim=base_head_dim,
            base_ffn_dim=base_ffn_dim,
            decay_exponent=decay_exponent,
        )
