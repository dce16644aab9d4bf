"""DeepNorm trains where deep Post-LN does not."""

from collections.abc import Mapping, Sequence

from addnorm.claims.base import Budget, register
from addnorm.claims.fields import deep
from addnorm.claims.remedy import EXPERIMENT, PROGRESS_BY_LR, RULE, remedy_checks
from addnorm.claims.training import ByTraining
from addnorm.claims.verdict import Check
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.lab.spec import Comparison


@register(
    Card(
        name="deepnorm_trains_deep",
        title="DeepNorm trains deep stacks",
        formula="x <- N(alpha * x + f(x)), value side of f starts times beta",
        paper="Wang et al., DeepNet: Scaling Transformers to 1,000 Layers, 2022, arXiv 2203.00555",
        summary="DeepNorm trains at a depth at which Post-LN does not.",
    )
)
class DeepnormTrainsDeep(ByTraining):
    """DeepNorm beside Post-LN at the same depth, both tuned over one ladder."""

    place = "section 4 and table 1"
    experiment = EXPERIMENT
    rule = RULE.format(arm="deepnorm")
    drawing = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Both arms, and Pre-LN, which says what can be learnt in these steps."""
        return {"deep": deep(budget, ["post_ln", "pre_ln", "deepnorm"])}

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """One trains, the other does not."""
        return remedy_checks(rows, "deepnorm")
