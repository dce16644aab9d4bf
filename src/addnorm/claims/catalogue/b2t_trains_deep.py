"""Claim: B2T trains at a depth at which Post-LN does not."""

from collections.abc import Mapping

from addnorm.claims.claim import Budget, register
from addnorm.claims.deep_training_claims import (
    THIRD_PILOT,
    DeepRemedyClaim,
    describe_very_deep_experiment,
)
from addnorm.claims.experiments import TUNED_LRS, very_deep_comparison
from addnorm.comparison.spec import Comparison
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
    """B2T, tuned over the learning rate, and Post-LN at the same depth."""

    arm = "b2t"
    paper_location = "sections 4 and 5"
    about = ("b2t",)
    finding = "B2T reaches {progress of b2t} of Pre-LN's progress, Post-LN {progress of post_ln}"
    measured_on = "dates, 18+18 layers of width 32, 120 steps"
    reach = (
        "at twice its best learning rate half of the seeds do not train; not tested: longer "
        "training and wider models"
    )
    experiment = describe_very_deep_experiment(
        f"B2T is tuned over {len(TUNED_LRS)} learning rates, with warm-up. Pre-LN runs without and"
    )
    pilot = (
        f"{THIRD_PILOT} Then B2T, at the one learning rate 0.002 that all other arms have, trained "
        "in two of four seeds and stayed at the baseline in the other two, so that the claim was "
        "undecided. Two lower rates were added for B2T alone; those rows had been seen."
    )
    has_new_rows = False

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {
            "deep": very_deep_comparison(
                budget, ["post_ln"], arms_without_warmup=["pre_ln"], tuned_arms=[self.arm]
            )
        }
