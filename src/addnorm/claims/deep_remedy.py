"""What the claims have in common that say: this trains where deep Post-LN does not."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from addnorm.claims.checks import Check, over_seeds
from addnorm.claims.claim import Budget, Drawing
from addnorm.claims.experiments import deep
from addnorm.claims.trained import GUIDE, LITTLE, PROGRESS, TRAINS, ByTraining, tuned
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired
from addnorm.core.rows import Row

BOTH_WAYS = "without warm-up and with one of a quarter of the steps"
PROGRESS_BY_LR = Drawing(
    name="progress", x="lr", y="progress", by=("arm", "warmup"), log_x=True, guides=GUIDE
)


def deep_experiment(arms: str) -> str:
    """The paragraph of a claim about deep stacks. arms: each with the warm-ups it has"""
    return (
        "Encoder and decoder of twelve layers each (eighteen in the full budget) learn to "
        f"translate dates over one ladder of learning rates: {arms}. {PROGRESS}"
    )


class Remedy(ByTraining):
    """An arm beside Post-LN at the same depth, over one ladder; Post-LN also over warm-up."""

    arm: ClassVar[str]
    warm: ClassVar[bool] = True
    """Whether its recipe has a warm-up."""
    experiment = deep_experiment(
        f"Post-LN {BOTH_WAYS}, Pre-LN without, and the arm as its recipe has it"
    )
    rule = (
        f"Premise: Post-LN at its best makes progress below {TRAINS:g}. The arm at its best makes "
        f"progress above {TRAINS:g}, and more than {LITTLE:g} above Post-LN, seed by seed."
    )
    drawing = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Both arms, and Pre-LN, which says what can be learnt in these steps."""
        warm, cold = ([self.arm], []) if self.warm else ([], [self.arm])
        return {"deep": deep(budget, ["post_ln"], cold=["pre_ln", *cold], warm=warm)}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """The arm trains where Post-LN does not."""
        own, post = (tuned(rows, arm=arm) for arm in (self.arm, "post_ln"))
        return [
            Check("progress of post_ln", over_seeds(post), high=TRAINS, premise=True),
            Check(f"progress of {self.arm}", over_seeds(own), low=TRAINS),
            Check(f"{self.arm} minus post_ln", paired(own, post), low=LITTLE),
        ]
