"""Claim: DLCL trains at a depth at which Post-LN does not."""

from addnorm.claims.claim import register
from addnorm.claims.deep_training_claims import DeepRemedyClaim
from addnorm.core.cards import Card


@register(
    Card(
        name="dlcl_trains_deep",
        title="DLCL trains deep stacks",
        formula="x_layer = sum_k W[layer, k] * N_k(y_k)",
        paper=(
            "Wang et al., Learning Deep Transformer Models for Machine Translation, 2019, arXiv "
            "1906.01787"
        ),
        summary=(
            "A learned combination of all earlier layers trains at a depth at which Post-LN does "
            "not."
        ),
    )
)
class DlclTrainsDeep(DeepRemedyClaim):
    """DLCL and Post-LN at the same depth."""

    # NOTE[DIFF]: the arm is DLCL in its usual form, around Pre-LN layers; the chart shows that
    # Pre-LN alone trains here, too.
    arm = "dlcl"
    paper_location = "sections 3 and 5"
    about = ("dlcl",)
    finding = "DLCL reaches {progress of dlcl} of Pre-LN's progress, Post-LN {progress of post_ln}"
    measured_on = "dates, 18+18 layers of width 32, 120 steps"
    reach = "not tested: longer training and wider models"
