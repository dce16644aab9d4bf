"""Post-LN of twelve layers does not train where Pre-LN does."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check, over_seeds
from addnorm.claims.claim import Budget, register
from addnorm.claims.deep_remedy import BOTH_WAYS, PROGRESS_BY_LR, deep_experiment
from addnorm.claims.experiments import deep
from addnorm.claims.trained import LITTLE, TRAINS, ByTraining, tuned
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired
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
        summary="Post-LN of twelve layers or more does not train, where Pre-LN does.",
    )
)
class DeepPostLnFails(ByTraining):
    """Both wirings at one depth, tuned over learning rates and over warm-up."""

    # NOTE[DIFF]: the papers train encoders of 18 and 20 layers on WMT for days; here twelve layers
    # in encoder and decoder learn dates for minutes.
    place = "section 5.2 of Wang et al.; sections 1 and 5 of Liu et al."
    experiment = deep_experiment(f"Post-LN and Pre-LN, {BOTH_WAYS}")
    rule = (
        f"Premise: Pre-LN at its best learning rate and warm-up makes progress above {TRAINS:g}. "
        f"Post-LN at its best makes progress below {TRAINS:g}, and more than {LITTLE:g} below "
        "Pre-LN, seed by seed."
    )
    drawing = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Two arms, each with and without warm-up."""
        return {"deep": deep(budget, ["post_ln", "pre_ln"])}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """One trains, the other does not."""
        post, pre = (tuned(rows, arm=arm) for arm in ("post_ln", "pre_ln"))
        return [
            Check("progress of pre_ln", over_seeds(pre), low=TRAINS, premise=True),
            Check("progress of post_ln", over_seeds(post), high=TRAINS),
            Check("post_ln minus pre_ln", paired(post, pre), high=-LITTLE),
        ]
