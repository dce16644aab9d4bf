"""Base class of the claims that an arm trains at a depth where Post-LN does not."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget
from addnorm.claims.experiments import FAILING_LRS, TRAINING_LR, very_deep_comparison
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import (
    PROGRESS_DEFINITION,
    TRAINED_GUIDE,
    TRAINED_THRESHOLD,
    ComparisonClaim,
    make_progress_chart,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.rows import Row

WITH_AND_WITHOUT_WARMUP = "without warm-up and with one of a quarter of the steps"
PROGRESS_BY_LR = make_progress_chart("arm", "warmup", guides=TRAINED_GUIDE)


def describe_deep_experiment(arms: str) -> str:
    """Return the experiment text of a claim about deep stacks.

    Args:
        arms: arms and their warm-ups, as text
    """
    return (
        "Encoder and decoder of twelve layers each (eighteen in the full budget) learn to "
        f"translate dates over the same learning rates: {arms}. {PROGRESS_DEFINITION}"
    )


def describe_very_deep_experiment(arms: str) -> str:
    """Return the experiment text of a claim about the depth at which Post-LN does not train.

    Args:
        arms: arms that are not tuned and their warm-ups, as text
    """
    return (
        "Encoder and decoder of eighteen layers each learn to translate dates in 120 steps (2,000 "
        "in the full budget). Post-LN, and any other arm that is said to fail, is tuned over "
        f"{len(FAILING_LRS)} learning rates, {WITH_AND_WITHOUT_WARMUP}. {arms} at the learning "
        f"rate {TRAINING_LR:g} only, which was fixed before the run: an arm that trains at one "
        f"rate trains. {PROGRESS_DEFINITION}"
    )


THIRD_PILOT = (
    "the second round of these claims, at twelve layers, with other seeds: there Post-LN made a "
    "progress of 0.19 of Pre-LN's, too close to 0.25 for five seeds, and each claim had a scale of "
    "its own. Learning rates and the number of seeds were chosen from those rows. In pilot runs of "
    "eighteen layers, made for the comparison and not for the claims, Post-LN did not train with "
    "warm-up either, and B2T did. No run of this round had been looked at when the rule was "
    "written."
)


def check_post_ln_fails(rows: Sequence[Row], *, premise: bool) -> Check:
    """Return the check that Post-LN does not train; equal in all claims at this depth."""
    post = estimate_over_seeds(best_setting_values(rows, arm="post_ln"))
    return Check("progress of post_ln", post, high=TRAINED_THRESHOLD, premise=premise)


class VeryDeepClaim(ComparisonClaim):
    """Base class of claims at the depth at which Post-LN does not train.

    The reference is Pre-LN without warm-up. All claims share its cells and those of Post-LN.
    """

    pilot = THIRD_PILOT
    corrected = True
    has_new_rows = True
    chart = PROGRESS_BY_LR


class DeepRemedyClaim(VeryDeepClaim):
    """Comparison of an arm with Post-LN at a depth at which Post-LN does not train."""

    arm: ClassVar[str]
    has_warmup: ClassVar[bool] = True
    """Whether the recipe of the arm has a warm-up."""
    experiment = describe_very_deep_experiment(
        "Pre-LN runs without warm-up and the arm as its recipe has it, both"
    )
    rule = (
        f"Premise, a statement about this depth: Post-LN at its best makes progress below "
        f"{TRAINED_THRESHOLD:g}. The arm makes progress above {TRAINED_THRESHOLD:g}, and more than "
        f"{TRAINED_THRESHOLD:g} above Post-LN, seed by seed."
    )

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        warm, cold = ([self.arm], []) if self.has_warmup else ([], [self.arm])
        return {
            "deep": very_deep_comparison(
                budget, ["post_ln"], arms_without_warmup=["pre_ln", *cold], arms_with_warmup=warm
            )
        }

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        own, post = (best_setting_values(rows, arm=arm) for arm in (self.arm, "post_ln"))
        return [
            check_post_ln_fails(rows, premise=True),
            Check(f"progress of {self.arm}", estimate_over_seeds(own), low=TRAINED_THRESHOLD),
            Check(f"{self.arm} minus post_ln", paired_difference(own, post), low=TRAINED_THRESHOLD),
        ]
