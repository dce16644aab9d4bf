"""Claim: T-Fixup trains at a depth at which Post-LN does not."""

from addnorm.claims.claim import register
from addnorm.claims.deep_training_claims import DeepRemedyClaim
from addnorm.core.cards import Card


@register(
    Card(
        name="t_fixup_trains_deep",
        title="T-Fixup trains deep stacks",
        formula="x <- x + f(x), start weights scaled by depth ** (-1 / 4)",
        paper=(
            "Huang, Perez, Ba and Volkovs, Improving Transformer Optimization Through Better "
            "Initialization, 2020, ICML"
        ),
        summary=(
            "T-Fixup's initialization trains without any norm or warm-up at a depth at which "
            "Post-LN does not."
        ),
    )
)
class TFixupTrainsDeep(DeepRemedyClaim):
    """T-Fixup and Post-LN at the same depth."""

    arm = "t_fixup"
    has_warmup = False
    paper_location = "sections 3 and 4"
    about = ("t_fixup",)
    finding = (
        "T-Fixup reaches {progress of t_fixup} of Pre-LN's progress, Post-LN {progress of post_ln}"
    )
    measured_on = "dates, 18+18 layers of width 32, 120 steps"
    reach = "not tested: longer training and wider models"
