"""Claim: Post-LN with twelve layers does not train where Pre-LN does."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, register
from addnorm.claims.deep_training_claims import (
    PROGRESS_BY_LR,
    WITH_AND_WITHOUT_WARMUP,
    describe_deep_experiment,
)
from addnorm.claims.experiments import deep_comparison
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    TRAINED_THRESHOLD,
    ComparisonClaim,
    best_setting_values,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row


@register(
    Card(
        name="deep_post_ln_fails",
        title="Deep Post-LN fails",
        formula="x <- N(x + f(x)) fails where x <- x + f(N(x)) trains, from about twelve layers on",
        paper=(
            "Wang et al., Learning Deep Transformer Models for Machine Translation, 2019, "
            "arXiv 1906.01787; Liu et al., Understanding the Difficulty of Training "
            "Transformers, 2020, arXiv 2004.08249"
        ),
        summary="Post-LN with twelve layers or more does not train where Pre-LN does.",
    )
)
class DeepPostLnFails(ComparisonClaim):
    """Post-LN and Pre-LN at one depth, tuned over learning rate and warm-up."""

    # NOTE[DIFF]: the papers train encoders of 18 and 20 layers on WMT for days; here twelve layers
    # in encoder and decoder learn dates for minutes.
    paper_location = "section 5.2 of Wang et al.; sections 1 and 5 of Liu et al."
    experiment = describe_deep_experiment(f"Post-LN and Pre-LN, {WITH_AND_WITHOUT_WARMUP}")
    rule = (
        "Premise: Pre-LN at its best learning rate and warm-up makes progress above "
        f"{TRAINED_THRESHOLD:g}. Post-LN at its best makes progress below {TRAINED_THRESHOLD:g}, "
        f"and more than {NEGLIGIBLE_PROGRESS:g} below Pre-LN, seed by seed."
    )
    chart = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {"deep": deep_comparison(budget, ["post_ln", "pre_ln"])}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        post, pre = (best_setting_values(rows, arm=arm) for arm in ("post_ln", "pre_ln"))
        return [
            Check(
                "progress of pre_ln", estimate_over_seeds(pre), low=TRAINED_THRESHOLD, premise=True
            ),
            Check("progress of post_ln", estimate_over_seeds(post), high=TRAINED_THRESHOLD),
            Check("post_ln minus pre_ln", paired_difference(post, pre), high=-NEGLIGIBLE_PROGRESS),
        ]
