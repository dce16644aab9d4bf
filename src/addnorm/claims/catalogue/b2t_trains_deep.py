"""Claim: B2T trains at a depth at which Post-LN does not."""

from addnorm.claims.claim import register
from addnorm.claims.deep_training_claims import DeepRemedyClaim
from addnorm.core.cards import Card


@register(
    Card(
        name="b2t_trains_deep",
        title="B2T trains deep stacks",
        formula="x <- N(x + f(x)); at a layer's last sub-layer x <- N(x + f(x) + bottom)",
        paper=(
            "Takase et al., On Layer Normalizations and Residual Connections in Transformers, "
            "2022, arXiv 2206.00330"
        ),
        summary=(
            "A connection from the bottom of each layer to its top lets Post-LN train at a depth "
            "at which it otherwise does not."
        ),
    )
)
class B2tTrainsDeep(DeepRemedyClaim):
    """B2T and Post-LN at the same depth."""

    arm = "b2t"
    paper_location = "sections 4 and 5"
    about = ("b2t",)
    finding = "B2T reaches {progress of b2t} of Pre-LN's progress, Post-LN {progress of post_ln}"
    measured_on = "dates, 18+18 layers of width 32, 120 steps"
    reach = "not tested: longer training and wider models"
