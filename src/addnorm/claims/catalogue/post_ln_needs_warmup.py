"""Claim: Post-LN needs warm-up, Pre-LN does not."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, ChartSpec, register
from addnorm.claims.experiments import warmup_comparison
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    PROGRESS_DEFINITION,
    TRAINED_GUIDE,
    TRAINED_THRESHOLD,
    ComparisonClaim,
    best_setting_values,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import Estimate, paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row


@register(
    Card(
        name="post_ln_needs_warmup",
        title="Post-LN needs warm-up",
        formula="loss(warm-up) < loss(no warm-up) in Post-LN, and not in Pre-LN",
        paper=(
            "Xiong et al., On Layer Normalization in the Transformer Architecture, 2020, "
            "arXiv 2002.04745"
        ),
        summary="Post-LN needs learning-rate warm-up; Pre-LN trains equally well without it.",
    )
)
class PostLnNeedsWarmup(ComparisonClaim):
    """Post-LN and Pre-LN with and without warm-up."""

    # NOTE[DIFF]: the paper trains on IWSLT14 with an inverse square root schedule after the
    # warm-up; here the learning rate stays constant.
    paper_location = "section 3.1 and figure 2; section 4"
    experiment = (
        "Encoder and decoder of six layers each learn to translate dates, without warm-up and with "
        "one of a quarter of the steps, over the same learning rates. " + PROGRESS_DEFINITION
    )
    rule = (
        f"Premise: with warm-up both make progress above {TRAINED_THRESHOLD:g}. With warm-up "
        f"Post-LN makes more than {NEGLIGIBLE_PROGRESS:g} more progress than without, seed by "
        f"seed, and Pre-LN less than {NEGLIGIBLE_PROGRESS:g} more; each at its best learning rate."
    )
    chart = ChartSpec(
        name="progress",
        x="lr",
        y="progress",
        group_by=("arm", "warmup"),
        log_x=True,
        guides=TRAINED_GUIDE,
    )

    group_fields = ("study", "arm", "warmup")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        arms = ["post_ln", "pre_ln"]
        return {
            "adamw": warmup_comparison(budget, arms, with_warmup=[False, True], optimizer="adamw")
        }

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        warm = [row for row in rows if row["warmup"]]
        trained = [
            Check(
                f"{arm}: progress with warm-up",
                estimate_over_seeds(best_setting_values(warm, arm=arm)),
                TRAINED_THRESHOLD,
                premise=True,
            )
            for arm in ("post_ln", "pre_ln")
        ]
        return [
            *trained,
            Check(
                "post_ln: with warm-up minus without",
                _warmup_gain(rows, "post_ln"),
                low=NEGLIGIBLE_PROGRESS,
            ),
            Check(
                "pre_ln: with warm-up minus without",
                _warmup_gain(rows, "pre_ln"),
                high=NEGLIGIBLE_PROGRESS,
            ),
        ]


def _warmup_gain(rows: Sequence[Row], arm: str) -> Estimate | None:
    warm, cold = ([row for row in rows if bool(row["warmup"]) == side] for side in (True, False))
    return paired_difference(best_setting_values(warm, arm=arm), best_setting_values(cold, arm=arm))
