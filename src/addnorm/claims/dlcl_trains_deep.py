"""DLCL trains where deep Post-LN does not."""

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
        name="dlcl_trains_deep",
        title="DLCL trains deep stacks",
        formula="x_layer = sum_k W[layer, k] * N_k(y_k)",
        paper=(
            "Wang et al., Learning Deep Transformer Models for Machine Translation, 2019, arXiv "
            "1906.01787"
        ),
        summary=(
            "A learned combination of all earlier layers trains at a depth at which Post-LN does "
            "not."
        ),
    )
)
class DlclTrainsDeep(ByTraining):
    """DLCL beside Post-LN at the same depth, both tuned over one ladder."""

    place = "sections 3 and 5"
    experiment = EXPERIMENT
    rule = RULE.format(arm="dlcl")
    drawing = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Both arms, and Pre-LN, which says what can be learnt in these steps."""
        return {"deep": deep(budget, ["post_ln", "pre_ln", "dlcl"])}

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """One trains, the other does not."""
        return remedy_checks(rows, "dlcl")
