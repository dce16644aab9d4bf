"""On a small task more than six layers bring little."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check, over_seeds
from addnorm.claims.claim import Budget, Drawing, register
from addnorm.claims.experiments import deep
from addnorm.claims.trained import LITTLE, PROGRESS, TRAINS, ByTraining, tuned
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired
from addnorm.core.cards import Card
from addnorm.core.rows import Row

DEPTHS = [6, 12]


@register(
    Card(
        name="six_layers_are_enough",
        title="Six layers are enough",
        formula="loss(12 layers) is not below loss(6 layers) on a small task",
        paper=(
            "Wang et al., Learning Deep Transformer Models for Machine Translation, 2019, "
            "arXiv 1906.01787, against which it is held; Vaswani et al., Attention Is All You "
            "Need, 2017, arXiv 1706.03762, whose six layers are usual"
        ),
        summary="More than six layers bring little where the task is small.",
    )
)
class SixLayersAreEnough(ByTraining):
    """Pre-LN at two depths."""

    said_by = "ours, against Wang et al., 2019"
    place = "table 3 of Vaswani et al.; section 5.2 of Wang et al."
    experiment = (
        "Pre-LN of six and of twelve layers in encoder and decoder learns to translate dates "
        "in the same number of steps, over one ladder of learning rates, without warm-up and with "
        "one of a quarter of the steps. " + PROGRESS
    )
    rule = (
        f"Premise: six layers make progress above {TRAINS:g}. Twelve layers make less than "
        f"{LITTLE:g} more than six, seed by seed."
    )
    drawing = Drawing(name="progress", x="lr", y="progress", by=("depth", "warmup"), log_x=True)
    sides = ("study", "depth")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """One arm at both depths."""
        return {"deep": deep(budget, ["pre_ln"], depths=DEPTHS)}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """What the second half brings."""
        depths = sorted({row["depth"] for row in rows}) or DEPTHS
        few, many = depths[0], depths[-1]
        six, twelve = (tuned(rows, depth=depth) for depth in (few, many))
        return [
            Check(f"progress of {few} layers", over_seeds(six), low=TRAINS, premise=True),
            Check(f"{many} layers minus {few}", paired(twelve, six), high=LITTLE),
        ]
