"""T-Fixup trains where deep Post-LN does not."""

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
        name="t_fixup_trains_deep",
        title="T-Fixup trains deep stacks",
        formula="x <- x + f(x), start weights scaled by depth ** (-1 / 4)",
        paper=(
            "Huang, Perez, Ba and Volkovs, Improving Transformer Optimization Through Better "
            "Initialization, 2020, ICML"
        ),
        summary=(
            "T-Fixup's start weights, without any norm or warm-up, train at a depth at which Post- "
            "LN does not."
        ),
    )
)
class TFixupTrainsDeep(ByTraining):
    """T-Fixup beside Post-LN at the same depth, both tuned over one ladder."""

    place = "sections 3 and 4"
    experiment = EXPERIMENT
    rule = RULE.format(arm="t_fixup")
    drawing = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Both arms, and Pre-LN, which says what can be learnt in these steps."""
        return {"deep": deep(budget, ["post_ln", "pre_ln", "t_fixup"])}

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """One trains, the other does not."""
        return remedy_checks(rows, "t_fixup")
