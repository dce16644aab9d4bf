"""Claim: CompleteP keeps the best learning rate of Pre-LN over width and depth."""

from addnorm.claims.claim import register
from addnorm.claims.rate_transfer_claims import RateTransferClaim
from addnorm.core.cards import Card


@register(
    Card(
        name="rate_transfers_with_pre_ln",
        title="CompleteP keeps the rate of Pre-LN",
        formula="best rate at 16 layers of width 64 = best rate at 4 layers of width 32",
        paper=(
            "Dey et al., Don't be lazy: CompleteP enables compute-efficient deep transformers, "
            "2025, arXiv 2505.01618"
        ),
        summary="The best learning rate of a small Pre-LN model stays good for a large one.",
    )
)
class RateTransfersWithPreLn(RateTransferClaim):
    """Pre-LN at two sizes, standard, with muP and with CompleteP."""

    wiring = "pre_ln"
    rates = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2)
    paper_location = "section 3 and figure 2"
    about = ("pre_ln",)
