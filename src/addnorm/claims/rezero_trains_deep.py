"""ReZero trains where deep Post-LN does not."""

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
        name="rezero_trains_deep",
        title="ReZero trains deep stacks",
        formula="x <- x + alpha * f(x), alpha = 0 at start",
        paper=(
            "Bachlechner et al., ReZero is All You Need: Fast Convergence at Large Depth, 2020, "
            "arXiv 2003.04887"
        ),
        summary="ReZero, without any norm or warm-up, trains at a depth at which Post-LN does not.",
    )
)
class RezeroTrainsDeep(ByTraining):
    """ReZero beside Post-LN at the same depth, both tuned over one ladder."""

    place = "section 5"
    experiment = EXPERIMENT
    rule = RULE.format(arm="rezero")
    drawing = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Both arms, and Pre-LN, which says what can be learnt in these steps."""
        return {"deep": deep(budget, ["post_ln", "pre_ln", "rezero"])}

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """One trains, the other does not."""
        return remedy_checks(rows, "rezero")
