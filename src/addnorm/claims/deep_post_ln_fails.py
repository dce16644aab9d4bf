"""Post-LN of twelve layers does not train where Pre-LN does."""

from collections.abc import Mapping, Sequence

from addnorm.claims.base import Budget, Drawing, register
from addnorm.claims.fields import deep
from addnorm.claims.training import GUIDE, PROGRESS, TRAINS, ByTraining, tuned
from addnorm.claims.verdict import Check, over_seeds
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.lab.spec import Comparison


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
        summary="Post-LN of twelve layers or more does not train, where Pre-LN does.",
    )
)
class DeepPostLnFails(ByTraining):
    """Both wirings at one depth, tuned over learning rates and over warm-up."""

    # NOTE[DIFF]: the papers train encoders of 18 and 20 layers on WMT for days; here twelve layers
    # in encoder and decoder learn dates for minutes.
    place = "section 5.2 of Wang et al.; sections 1 and 5 of Liu et al."
    experiment = (
        "Encoder and decoder of twelve layers each (eighteen in the full budget) learn to "
        "translate dates over one ladder of learning rates, without and with a warm-up of a "
        "quarter of the steps. " + PROGRESS
    )
    rule = (
        f"At its best learning rate and warm-up Pre-LN makes progress of {TRAINS:g} or more, and "
        f"Post-LN of {TRAINS:g} or less."
    )
    drawing = Drawing(
        name="progress", x="lr", y="progress", by=("arm", "warmup"), log_x=True, guides=GUIDE
    )

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Two arms, each with and without warm-up."""
        return {"deep": deep(budget, ["post_ln", "pre_ln"], warm=True)}

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """One trains, the other does not."""
        return [
            Check("progress of pre_ln", over_seeds(tuned(rows, arm="pre_ln")), low=TRAINS),
            Check("progress of post_ln", over_seeds(tuned(rows, arm="post_ln")), high=TRAINS),
        ]
