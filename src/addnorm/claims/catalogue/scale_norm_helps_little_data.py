"""Claim: ScaleNorm helps with little data."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, register
from addnorm.claims.experiments import SMALL_CORPUS_RECORDS, norm_comparison
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    PROGRESS_DEFINITION,
    RULE_CHANGED_ON_SEEN_ROWS,
    ComparisonClaim,
    TrainedClaim,
    make_progress_chart,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row


@register(
    Card(
        name="scale_norm_helps_little_data",
        title="ScaleNorm on little data",
        formula="loss(g * x / |x|) < loss(LayerNorm) on a small corpus",
        paper=(
            "Nguyen and Salazar, Transformers without Tears: Improving the Normalization of "
            "Self-Attention, 2019, arXiv 1910.05895"
        ),
        summary="With little data ScaleNorm, which has a single scalar, is better than LayerNorm.",
    )
)
class ScaleNormHelpsLittleData(ComparisonClaim):
    """ScaleNorm and LayerNorm in Pre-LN on a small corpus."""

    # NOTE[DIFF]: the best model of the paper also has FixNorm on the embedding table; here
    # ScaleNorm alone. FixNorm is a separate claim.
    paper_location = "section 4.2 and table 2"
    about = ("scale", "layer")
    finding = "ScaleNorm's progress minus LayerNorm's is {progress on few pairs, scale minus layer}"
    measured_on = "dates, 3+3 layers of width 32, 300 steps on 200 pairs"
    reach = "differences below 0.05 are not resolved; published gains may be smaller"
    discussion = (
        "The paper translates five low-resource pairs of languages, and its best model has "
        "FixNorm and smaller initial weights as well. Here ScaleNorm alone is within 0.05 of "
        "LayerNorm on dates. A gain of the published size may be smaller than that and would "
        "not be seen."
    )
    experiment = (
        "Pre-LN with either norm learns to translate dates from a small set of pairs that it can "
        "memorize, over the same learning rates. " + PROGRESS_DEFINITION
    )
    rule = (
        "Premise: LayerNorm, the reference, learns. ScaleNorm makes more progress, seed by seed, "
        f"by more than {NEGLIGIBLE_PROGRESS:g}, the difference below which two arms count as "
        "equal. Until the third round: by more than 0, which cannot be refuted if there is no "
        "difference."
    )
    pilot = TrainedClaim.pilot + RULE_CHANGED_ON_SEEN_ROWS
    corrected = True
    chart = make_progress_chart()

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {"few": norm_comparison(budget, ["layer", "scale"], small_corpus=True)}

    def records(self, budget: Budget) -> Mapping[str, int]:
        return {**super().records(budget), "few": SMALL_CORPUS_RECORDS[budget]}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        gain = paired_difference(
            best_setting_values(rows, arm="pre_ln scale"), best_setting_values(rows, arm="pre_ln")
        )
        return [Check("progress on few pairs, scale minus layer", gain, low=NEGLIGIBLE_PROGRESS)]
