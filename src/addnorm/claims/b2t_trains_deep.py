"""B2T trains where deep Post-LN does not."""

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
        name="b2t_trains_deep",
        title="B2T trains deep stacks",
        formula="x <- N(x + f(x)); at a layer's last sub-layer x <- N(x + f(x) + bottom)",
        paper=(
            "Takase et al., On Layer Normalizations and Residual Connections in Transformers, "
            "2022, arXiv 2206.00330"
        ),
        summary=(
            "A connection from the bottom of each layer to its top lets Post-LN train at a depth "
            "at which it otherwise does not."
        ),
    )
)
class B2tTrainsDeep(ByTraining):
    """B2T beside Post-LN at the same depth, both tuned over one ladder."""

    place = "sections 4 and 5"
    experiment = EXPERIMENT
    rule = RULE.format(arm="b2t")
    drawing = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Both arms, and Pre-LN, which says what can be learnt in these steps."""
        return {"deep": deep(budget, ["post_ln", "pre_ln", "b2t"])}

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """One trains, the other does not."""
        return remedy_checks(rows, "b2t")
