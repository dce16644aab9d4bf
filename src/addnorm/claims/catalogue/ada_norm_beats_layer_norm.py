"""Claim: AdaNorm is better than LayerNorm."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, register
from addnorm.claims.experiments import norm_comparison
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import PROGRESS_DEFINITION, ComparisonClaim, make_progress_chart
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row


@register(
    Card(
        name="ada_norm_beats_layer_norm",
        title="AdaNorm beats LayerNorm",
        formula="loss(C * (1 - k * sg(y)) * y) < loss(LayerNorm)",
        paper=(
            "Xu et al., Understanding and Improving Layer Normalization, 2019, arXiv 1911.07013"
        ),
        summary="AdaNorm, whose gain is a function of the input, is better than LayerNorm.",
    )
)
class AdaNormBeatsLayerNorm(ComparisonClaim):
    """AdaNorm and LayerNorm in Pre-LN."""

    # NOTE[DIFF]: the released code changes only the final norms of encoder and decoder; here every
    # norm is an AdaNorm, as in the paper. C stays at its default and is not tuned.
    paper_location = "section 4 and table 6"
    about = ("ada", "layer")
    finding = "AdaNorm's progress minus LayerNorm's is {progress, ada minus layer}"
    measured_on = "dates, 3+3 layers of width 32, 200 steps on 5,000 pairs"
    reach = "the constant C is not tuned, and tasks on which LayerNorm over-fits are not tested"
    discussion = (
        "The paper reports small gains on tasks on which LayerNorm over-fits, with C tuned for "
        "each. Here dates are learnt in 200 steps, nothing over-fits and C has its default, so "
        "that only a cost is left: AdaNorm has no gain to learn."
    )
    experiment = (
        "Pre-LN with either norm learns to translate dates over the same learning rates. "
        + PROGRESS_DEFINITION
    )
    rule = "AdaNorm makes more progress than LayerNorm, seed by seed: the difference is above 0."
    chart = make_progress_chart()

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {"norms": norm_comparison(budget, ["layer", "ada"])}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        gain = paired_difference(
            best_setting_values(rows, arm="pre_ln ada"), best_setting_values(rows, arm="pre_ln")
        )
        return [Check("progress, ada minus layer", gain, low=0)]
