"""Claim: Admin trains at a depth at which Post-LN does not."""

from addnorm.claims.claim import register
from addnorm.claims.deep_training_claims import DeepRemedyClaim
from addnorm.core.cards import Card


@register(
    Card(
        name="admin_trains_deep",
        title="Admin trains deep stacks",
        formula="x <- N(omega * x + f(x)), omega from the branches' variances on one batch",
        paper=(
            "Liu et al., Understanding the Difficulty of Training Transformers, 2020, arXiv "
            "2004.08249"
        ),
        summary=(
            "Admin, which scales the skips by variances measured on one batch, trains at a depth "
            "at which Post-LN does not."
        ),
    )
)
class AdminTrainsDeep(DeepRemedyClaim):
    """Admin and Post-LN at the same depth."""

    arm = "admin"
    paper_location = "section 5.2 and table 3"
    about = ("admin",)
    finding = (
        "Admin reaches {progress of admin} of Pre-LN's progress, Post-LN {progress of post_ln}"
    )
    measured_on = "dates, 18+18 layers of width 32, 120 steps"
    reach = "not tested: longer training and wider models"
