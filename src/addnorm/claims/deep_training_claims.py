"""Base class of the claims that an arm trains at a depth where Post-LN does not."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, ChartSpec
from addnorm.claims.experiments import deep_comparison
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    PROGRESS_DEFINITION,
    TRAINED_GUIDE,
    TRAINED_THRESHOLD,
    ComparisonClaim,
    best_setting_values,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.rows import Row

WITH_AND_WITHOUT_WARMUP = "without warm-up and with one of a quarter of the steps"
PROGRESS_BY_LR = ChartSpec(
    name="progress",
    x="lr",
    y="progress",
    group_by=("arm", "warmup"),
    log_x=True,
    guides=TRAINED_GUIDE,
)


def describe_deep_experiment(arms: str) -> str:
    """Return the experiment text of a claim about deep stacks.

    Args:
        arms: arms and their warm-ups, as text
    """
    return (
        "Encoder and decoder of twelve layers each (eighteen in the full budget) learn to "
        f"translate dates over the same learning rates: {arms}. {PROGRESS_DEFINITION}"
    )


class DeepRemedyClaim(ComparisonClaim):
    """Comparison of an arm with Post-LN at the same depth, over the same learning rates.

    Post-LN is also tuned over warm-up. Pre-LN takes part to show what these steps can reach.
    """

    arm: ClassVar[str]
    has_warmup: ClassVar[bool] = True
    """Whether the recipe of the arm has a warm-up."""
    experiment = describe_deep_experiment(
        f"Post-LN {WITH_AND_WITHOUT_WARMUP}, Pre-LN without, and the arm as its recipe has it"
    )
    rule = (
        f"Premise: Post-LN at its best makes progress below {TRAINED_THRESHOLD:g}. The arm at its "
        f"best makes progress above {TRAINED_THRESHOLD:g}, and more than {NEGLIGIBLE_PROGRESS:g} "
        "above Post-LN, seed by seed."
    )
    chart = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        warm, cold = ([self.arm], []) if self.has_warmup else ([], [self.arm])
        return {
            "deep": deep_comparison(
                budget, ["post_ln"], arms_without_warmup=["pre_ln", *cold], arms_with_warmup=warm
            )
        }

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        own, post = (best_setting_values(rows, arm=arm) for arm in (self.arm, "post_ln"))
        return [
            Check(
                "progress of post_ln",
                estimate_over_seeds(post),
                high=TRAINED_THRESHOLD,
                premise=True,
            ),
            Check(f"progress of {self.arm}", estimate_over_seeds(own), low=TRAINED_THRESHOLD),
            Check(
                f"{self.arm} minus post_ln", paired_difference(own, post), low=NEGLIGIBLE_PROGRESS
            ),
        ]
