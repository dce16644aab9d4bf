"""Claim: on a small task more than six layers bring little."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, register
from addnorm.claims.experiments import deep_comparison
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    PROGRESS_DEFINITION,
    ComparisonClaim,
    make_progress_chart,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row

DEPTHS = [6, 12]


@register(
    Card(
        name="six_layers_are_enough",
        title="Six layers are enough",
        formula="loss(12 layers) is not below loss(6 layers) on a small task",
        paper=(
            "Wang et al., Learning Deep Transformer Models for Machine Translation, 2019, "
            "arXiv 1906.01787, against which it is held; Vaswani et al., Attention Is All You "
            "Need, 2017, arXiv 1706.03762, whose six layers are usual"
        ),
        summary="More than six layers bring little on a small task.",
    )
)
class SixLayersAreEnough(ComparisonClaim):
    """Pre-LN with six and with twelve layers."""

    attributed_to = "ours, against Wang et al., 2019"
    paper_location = "table 3 of Vaswani et al.; section 5.2 of Wang et al."
    about = ("pre_ln",)
    finding = (
        "the progress of 12+12 layers minus that of 6+6 in the same number of steps is {12 "
        "layers minus 6}"
    )
    measured_on = "dates, Pre-LN of width 32, 150 steps"
    reach = "a small task and short training; deeper models learn more slowly here"
    experiment = (
        "Pre-LN of six and of twelve layers in encoder and decoder learns to translate dates "
        "in the same number of steps, over the same learning rates, without warm-up and with "
        "one of a quarter of the steps. " + PROGRESS_DEFINITION
    )
    rule = (
        "Premise: six layers, the reference, learn. Twelve layers make less "
        f"than {NEGLIGIBLE_PROGRESS:g} more than six, seed by seed."
    )
    chart = make_progress_chart("depth", "warmup")
    group_fields = ("study", "depth")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {"deep": deep_comparison(budget, ["pre_ln"], depths=DEPTHS)}

    def is_reference(self, row: Row) -> bool:
        return bool(row["depth"] < DEPTHS[-1])

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        depths = sorted({row["depth"] for row in rows}) or DEPTHS
        few, many = depths[0], depths[-1]
        six, twelve = (best_setting_values(rows, depth=depth) for depth in (few, many))
        return [
            Check(
                f"{many} layers minus {few}",
                paired_difference(twelve, six),
                high=NEGLIGIBLE_PROGRESS,
            ),
        ]
