"""Claim: shallow Post-LN is at least as good as Pre-LN, if both are tuned."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, register
from addnorm.claims.experiments import shallow_comparison
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import (
    FIRST_PILOT,
    NEGLIGIBLE_PROGRESS,
    PROGRESS_DEFINITION,
    ComparisonClaim,
    make_progress_chart,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row


@register(
    Card(
        name="shallow_post_ln_is_as_good",
        title="Shallow Post-LN is as good",
        formula="loss(Post-LN) <= loss(Pre-LN) where both train",
        paper=(
            "Liu et al., Understanding the Difficulty of Training Transformers, 2020, "
            "arXiv 2004.08249; Nguyen and Salazar, Transformers without Tears, 2019, "
            "arXiv 1910.05895"
        ),
        summary="Where Post-LN trains at all, its final loss is at least as good as Pre-LN's.",
    )
)
class ShallowPostLnIsAsGood(ComparisonClaim):
    """Post-LN and Pre-LN at a depth at which both train."""

    paper_location = "section 1 and table 1 of Liu et al.; section 5 of Nguyen and Salazar"
    about = ("post_ln", "pre_ln")
    finding = "Post-LN's progress minus Pre-LN's is {progress, post_ln minus pre_ln}"
    measured_on = "dates, 2+2 layers of width 32, 200 steps"
    reach = "shallow models; that it ends better than Pre-LN is not tested"
    experiment = (
        "Encoder and decoder of two layers each learn to translate dates over the same "
        "learning rates, without and with a warm-up of a quarter of the steps. "
        + PROGRESS_DEFINITION
    )
    rule = (
        "Premise: Pre-LN, the reference, learns. Post-LN at its best learning rate and warm-up "
        f"makes less than {NEGLIGIBLE_PROGRESS:g} less than Pre-LN at its best, seed by seed."
    )
    pilot = FIRST_PILOT
    chart = make_progress_chart("arm", "warmup")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {"shallow": shallow_comparison(budget, ["post_ln", "pre_ln"])}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        post, pre = (best_setting_values(rows, arm=arm) for arm in ("post_ln", "pre_ln"))
        return [
            Check(
                "progress, post_ln minus pre_ln",
                paired_difference(post, pre),
                low=-NEGLIGIBLE_PROGRESS,
            ),
        ]
