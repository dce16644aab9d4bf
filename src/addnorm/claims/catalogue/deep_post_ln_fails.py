"""Claim: Post-LN with eighteen layers does not train where Pre-LN does."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, register
from addnorm.claims.deep_training_claims import (
    VeryDeepClaim,
    check_post_ln_fails,
    describe_very_deep_experiment,
)
from addnorm.claims.experiments import very_deep_comparison
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import TRAINED_THRESHOLD
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row


@register(
    Card(
        name="deep_post_ln_fails",
        title="Deep Post-LN fails",
        formula="x <- N(x + f(x)) fails where x <- x + f(N(x)) trains",
        paper=(
            "Wang et al., Learning Deep Transformer Models for Machine Translation, 2019, "
            "arXiv 1906.01787; Liu et al., Understanding the Difficulty of Training "
            "Transformers, 2020, arXiv 2004.08249"
        ),
        summary="Deep Post-LN, here of eighteen layers, does not train where Pre-LN does.",
    )
)
class DeepPostLnFails(VeryDeepClaim):
    """Post-LN, tuned over learning rate and warm-up, and Pre-LN at one depth."""

    # NOTE[DIFF]: the papers train encoders of 18 and 20 layers on WMT for days; here 18 layers in
    # encoder and decoder learn dates for seconds.
    paper_location = "section 5.2 of Wang et al.; sections 1 and 5 of Liu et al."
    about = ("post_ln", "pre_ln")
    finding = (
        "Post-LN, tuned over rate and warm-up, reaches {progress of post_ln} of Pre-LN's progress"
    )
    measured_on = "dates, 18+18 layers of width 32, 120 steps"
    reach = "not tested: longer training and wider models"
    experiment = describe_very_deep_experiment("Pre-LN runs without warm-up and")
    rule = (
        "Premise: Pre-LN, the reference, learns. Post-LN at its best makes "
        f"progress below {TRAINED_THRESHOLD:g}, and more than {TRAINED_THRESHOLD:g} below Pre-LN, "
        "seed by seed."
    )

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {"deep": very_deep_comparison(budget, ["post_ln"], arms_without_warmup=["pre_ln"])}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        post, pre = (best_setting_values(rows, arm=arm) for arm in ("post_ln", "pre_ln"))
        return [
            check_post_ln_fails(rows, premise=False),
            Check("post_ln minus pre_ln", paired_difference(post, pre), high=-TRAINED_THRESHOLD),
        ]
