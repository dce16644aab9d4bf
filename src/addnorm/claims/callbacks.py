"""Claims callbacks."""

from addnorm.claims.claim import Claim
from addnorm.claims.result import Result
from addnorm.comparison.callbacks import ComparisonCallback


class ClaimsCallback(ComparisonCallback):
    """Claims callback. Override the hooks you need; the defaults do nothing.

    The hooks of `ComparisonCallback` run for each comparison of a claim, between `on_claim_start`
    and `on_claim_end`. A claim without a comparison reports its progress by `on_message`.
    """

    def on_claim_start(self, claim: Claim, *, number: int, total: int) -> None:
        """Run before a claim is measured; it is the `number`th of `total`, counted from 1."""

    def on_claim_end(self, claim: Claim, result: Result, *, cached: bool) -> None:
        """Run after a claim has a result; `cached` if the folder already held its rows."""
