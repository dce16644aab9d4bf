"""What helps in LayerNorm are the gradients of its statistics, not forward normalization alone."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, Drawing, register
from addnorm.claims.experiments import normed
from addnorm.claims.trained import GUIDE, LITTLE, PROGRESS, ByTraining, tuned
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired
from addnorm.core.cards import Card
from addnorm.core.rows import Row

SIMPLE, DETACHED, NONE = "pre_ln layer(affine=False)", "pre_ln detach", "pre_ln none"
DEPTH = 6
SHARE = 0.5


@register(
    Card(
        name="statistics_gradients_matter",
        title="Gradients of the statistics",
        formula="y = (x - sg(mean)) / sg(std) is worse than y = (x - mean) / std",
        paper=(
            "Xu et al., Understanding and Improving Layer Normalization, 2019, arXiv 1911.07013"
        ),
        summary=(
            "With the same forward, LayerNorm whose statistics give no gradients is worse: the "
            "derivatives of mean and variance matter more than forward normalization."
        ),
    )
)
class StatisticsGradientsMatter(ByTraining):
    """LayerNorm without gain and bias, the same detached, and no norm at all."""

    place = "section 3.2 and table 3"
    experiment = (
        "Pre-LN of six layers each, with LayerNorm without gain and bias, with the same norm whose "
        "mean and deviation are detached, and without norms learns to translate dates over one "
        "ladder of learning rates. " + PROGRESS
    )
    rule = (
        f"Premise: the whole norm makes more than {LITTLE:g} more progress than none. "
        "Seed by seed: the detached norm makes less progress than the whole one; and of what the "
        f"whole one brings over none it brings less than {SHARE:g} (detached - none minus "
        f"{SHARE:g} * (whole - none) is below 0)."
    )
    pilot = (
        "a first round by the same rule with three layers, where no norm costs nothing, so that "
        "the premise failed; then sixteen cells of six and twelve layers (seed 50), in which it "
        "does. The seeds that are told here nobody had seen."
    )
    drawing = Drawing(name="progress", x="lr", y="progress", log_x=True, guides=GUIDE)

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Three norms, in a stack that is deep enough to need one."""
        deeper = {} if budget == "smoke" else {"depth": DEPTH}
        return {"norms": normed(budget, ["layer(affine=False)", "detach", "none"], **deeper)}  # type: ignore[arg-type]

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """Worse than the whole, and no better than half of it."""
        whole, detached, none = (tuned(rows, arm=arm) for arm in (SIMPLE, DETACHED, NONE))
        shared = whole.keys() & none.keys()
        half = {seed: none[seed] + SHARE * (whole[seed] - none[seed]) for seed in shared}
        return [
            Check("progress, whole minus none", paired(whole, none), low=LITTLE, premise=True),
            Check("progress, detached minus whole", paired(detached, whole), high=0),
            Check("progress, detached minus half of the way", paired(detached, half), high=0),
        ]
