"""RAdam replaces warm-up for Post-LN."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, Drawing, register
from addnorm.claims.experiments import warmed
from addnorm.claims.trained import GUIDE, LITTLE, PROGRESS, ByTraining, tuned
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired
from addnorm.core.cards import Card
from addnorm.core.rows import Row

WARM, COLD, RADAM = "adamw, warm-up", "adamw, none", "radam, none"


@register(
    Card(
        name="radam_replaces_warmup",
        title="RAdam replaces warm-up",
        formula="loss(RAdam, no warm-up) = loss(Adam, warm-up) in Post-LN",
        paper=(
            "Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, 2019, "
            "arXiv 1908.03265"
        ),
        summary="RAdam trains Post-LN without warm-up as well as Adam does with it.",
    )
)
class RadamReplacesWarmup(ByTraining):
    """Post-LN under Adam with and without warm-up, and under RAdam without."""

    place = "sections 4 and 5.3; section 4 of Xiong et al. 2020, arXiv 2002.04745"
    experiment = (
        "Post-LN of six layers each in encoder and decoder learns to translate dates, under AdamW "
        "with a warm-up of a quarter of the steps and without, and under RAdam without, over one "
        "ladder of learning rates. " + PROGRESS
    )
    rule = (
        f"Premise: under AdamW warm-up brings more than {LITTLE:g}, so that there is something to "
        f"replace. RAdam without warm-up makes more than {LITTLE:g} more progress than AdamW "
        f"without, and less than {LITTLE:g} less than AdamW with warm-up, seed by seed, each at "
        "its best rate."
    )
    drawing = Drawing(
        name="progress", x="lr", y="progress", by=("study",), log_x=True, guides=GUIDE
    )

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """One arm, three times."""
        post = ["post_ln"]
        return {
            WARM: warmed(budget, post, warm=[True], optimizer="adamw"),
            COLD: warmed(budget, post, warm=[False], optimizer="adamw"),
            RADAM: warmed(budget, post, warm=[False], optimizer="radam"),
        }

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """Better than none, as good as one."""
        warm, cold, radam = (tuned(rows, study=study) for study in (WARM, COLD, RADAM))
        return [
            Check(
                "adamw, with warm-up minus without", paired(warm, cold), low=LITTLE, premise=True
            ),
            Check("radam minus adamw without warm-up", paired(radam, cold), low=LITTLE),
            Check("radam minus adamw with warm-up", paired(radam, warm), low=-LITTLE),
        ]
