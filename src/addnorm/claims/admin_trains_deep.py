"""Admin trains where deep Post-LN does not."""

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
        name="admin_trains_deep",
        title="Admin trains deep stacks",
        formula="x <- N(omega * x + f(x)), omega from the branches' variances on one batch",
        paper=(
            "Liu et al., Understanding the Difficulty of Training Transformers, 2020, arXiv "
            "2004.08249"
        ),
        summary=(
            "Admin, which scales the skips by what a first batch shows, trains at a depth at which "
            "Post-LN does not."
        ),
    )
)
class AdminTrainsDeep(ByTraining):
    """Admin beside Post-LN at the same depth, both tuned over one ladder."""

    place = "section 5.2 and table 3"
    experiment = EXPERIMENT
    rule = RULE.format(arm="admin")
    drawing = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Both arms, and Pre-LN, which says what can be learnt in these steps."""
        return {"deep": deep(budget, ["post_ln", "pre_ln", "admin"])}

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """One trains, the other does not."""
        return remedy_checks(rows, "admin")
