"""The wrong Pre-LN, whose skip starts behind the norm, behaves like Post-LN."""

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
        name="false_pre_ln_is_post_ln",
        title="The wrong Pre-LN",
        formula="u = N(x); x <- u + f(u): that is u <- N(u + f(u))",
        paper=(
            "Somepalli et al., SAINT: Improved Neural Networks for Tabular Data via Row Attention "
            "and Contrastive Pre-Training, 2021, arXiv 2106.01342 (its released code); PyTorch's "
            "first norm_first, 2021"
        ),
        summary=(
            "A Pre-LN whose skip starts behind the norm, a common slip, is Post-LN in disguise: "
            "it fails at the depth at which Post-LN does, and Pre-LN does not."
        ),
    )
)
class FalsePreLnIsPostLn(ByTraining):
    """The slip beside what it was meant to be and what it is."""

    said_by = "ours, on the code of Somepalli et al., 2021"
    place = "the released code of SAINT; issue 61165 of PyTorch"
    experiment = deep_experiment(
        f"Post-LN and the wrong Pre-LN {BOTH_WAYS}, the right Pre-LN without"
    )
    rule = (
        f"Premises: Pre-LN at its best makes progress above {TRAINS:g}, and more than {LITTLE:g} "
        f"above Post-LN. The wrong Pre-LN stays more than {LITTLE:g} below Pre-LN and differs from "
        f"Post-LN by less than {LITTLE:g}, seed by seed."
    )
    drawing = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """The slip and what it is, with and without warm-up; what it was meant to be, without."""
        return {"deep": deep(budget, ["post_ln", "false_pre_ln"], cold=["pre_ln"], seeds=4)}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """Unlike the one, like the other."""
        post, pre, false = (tuned(rows, arm=a) for a in ("post_ln", "pre_ln", "false_pre_ln"))
        return [
            Check("progress of pre_ln", over_seeds(pre), low=TRAINS, premise=True),
            Check("pre_ln minus post_ln", paired(pre, post), low=LITTLE, premise=True),
            Check("false_pre_ln minus pre_ln", paired(false, pre), high=-LITTLE),
            Check("false_pre_ln minus post_ln", paired(false, post), -LITTLE, LITTLE),
        ]
