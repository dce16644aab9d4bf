"""Claim: CompleteP keeps the best learning rate of Post-LN over width and depth."""

from addnorm.claims.claim import register
from addnorm.claims.rate_transfer_claims import RateTransferClaim
from addnorm.core.cards import Card


@register(
    Card(
        name="rate_transfers_with_post_ln",
        title="CompleteP keeps the rate of Post-LN",
        formula="best rate at 16 layers of width 64 = best rate at 4 layers of width 32",
        paper=(
            "Dey et al., Don't be lazy: CompleteP enables compute-efficient deep transformers, "
            "2025, arXiv 2505.01618"
        ),
        summary="The best learning rate of a small Post-LN model stays good for a large one.",
    )
)
class RateTransfersWithPostLn(RateTransferClaim):
    """Post-LN at two sizes, standard, with muP and with CompleteP."""

    wiring = "post_ln"
    rates = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
    paper_location = "section 3 and figure 2; the paper has Pre-LN only"
    about = ("post_ln",)
