"""Claim: DeepNorm trains at a depth at which Post-LN does not."""

from addnorm.claims.claim import register
from addnorm.claims.deep_training_claims import DeepRemedyClaim
from addnorm.core.cards import Card


@register(
    Card(
        name="deepnorm_trains_deep",
        title="DeepNorm trains deep stacks",
        formula="x <- N(alpha * x + f(x)), value side of f starts times beta",
        paper="Wang et al., DeepNet: Scaling Transformers to 1,000 Layers, 2022, arXiv 2203.00555",
        summary="DeepNorm trains at a depth at which Post-LN does not.",
    )
)
class DeepnormTrainsDeep(DeepRemedyClaim):
    """DeepNorm and Post-LN at the same depth."""

    arm = "deepnorm"
    paper_location = "section 4 and table 1"
    about = ("deepnorm",)
    finding = (
        "DeepNorm reaches {progress of deepnorm} of Pre-LN's progress, Post-LN {progress of "
        "post_ln}"
    )
    measured_on = "dates, 18+18 layers of width 32, 120 steps"
    reach = "not tested: longer training and wider models"
