"""Claim: ReZero trains at a depth at which Post-LN does not."""

from addnorm.claims.claim import register
from addnorm.claims.deep_training_claims import DeepRemedyClaim
from addnorm.core.cards import Card


@register(
    Card(
        name="rezero_trains_deep",
        title="ReZero trains deep stacks",
        formula="x <- x + alpha * f(x), alpha = 0 at start",
        paper=(
            "Bachlechner et al., ReZero is All You Need: Fast Convergence at Large Depth, 2020, "
            "arXiv 2003.04887"
        ),
        summary="ReZero, without any norm or warm-up, trains at a depth at which Post-LN does not.",
    )
)
class RezeroTrainsDeep(DeepRemedyClaim):
    """ReZero and Post-LN at the same depth."""

    arm = "rezero"
    has_warmup = False
    paper_location = "section 5"
    about = ("rezero",)
    finding = (
        "ReZero reaches {progress of rezero} of Pre-LN's progress, Post-LN {progress of post_ln}"
    )
    measured_on = "dates, 18+18 layers of width 32, 120 steps"
    reach = "not tested: longer training and wider models"
