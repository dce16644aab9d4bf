"""Shallow Post-LN ends at least as good as Pre-LN, when both are tuned."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check, over_seeds
from addnorm.claims.claim import Budget, Drawing, register
from addnorm.claims.experiments import shallow
from addnorm.claims.trained import FIRST, LITTLE, PROGRESS, TRAINS, ByTraining, tuned
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired
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
        summary="Where Post-LN trains at all, it ends at least as good as Pre-LN.",
    )
)
class ShallowPostLnIsAsGood(ByTraining):
    """Both wirings at a depth at which both train."""

    place = "section 1 and table 1 of Liu et al.; section 5 of Nguyen and Salazar"
    experiment = (
        "Encoder and decoder of two layers each learn to translate dates over one ladder of "
        "learning rates, without and with a warm-up of a quarter of the steps. " + PROGRESS
    )
    rule = (
        f"Premise: Pre-LN at its best learning rate and warm-up makes progress above {TRAINS:g}. "
        f"Post-LN at its best makes less than {LITTLE:g} less than Pre-LN, seed by seed."
    )
    pilot = FIRST
    drawing = Drawing(name="progress", x="lr", y="progress", by=("arm", "warmup"), log_x=True)

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Two arms, each with and without warm-up."""
        return {"shallow": shallow(budget, ["post_ln", "pre_ln"])}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """No worse."""
        post, pre = (tuned(rows, arm=arm) for arm in ("post_ln", "pre_ln"))
        return [
            Check("progress of pre_ln", over_seeds(pre), low=TRAINS, premise=True),
            Check("progress, post_ln minus pre_ln", paired(post, pre), low=-LITTLE),
        ]
