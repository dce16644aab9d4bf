"""DyT helps with few tokens and hurts with many."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check, over_seeds
from addnorm.claims.claim import Budget, Drawing, register
from addnorm.claims.experiments import FEW, normed
from addnorm.claims.trained import PROGRESS, TRAINS, ByTraining, tuned
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired
from addnorm.core.cards import Card
from addnorm.core.rows import Row


@register(
    Card(
        name="dyt_helps_small_data",
        title="DyT wants few tokens",
        formula="loss(tanh(alpha * x)) < loss(LayerNorm) on few tokens, > on many",
        paper=(
            "a study of DyT as a regulariser, 2026, arXiv 2604.23434 (read in a summary only), "
            "about Zhu et al., Transformers without Normalization, 2025, arXiv 2503.10622"
        ),
        summary="DyT in place of LayerNorm helps when training data are few, hurts when many.",
    )
)
class DytHelpsSmallData(ByTraining):
    """Both norms in Pre-LN on two sizes of corpus."""

    # NOTE[DIFF]: the study was read in a summary only, so that its settings are not known; alpha
    # starts at its default and is not tuned.

    place = "its tables of validation loss by model size and tokens"
    experiment = (
        "Pre-LN with either norm learns to translate dates, from all 5,000 pairs and, for longer, "
        "from a few, which it can learn by heart; over one ladder of learning rates each. "
        + PROGRESS
    )
    rule = (
        f"Premise: LayerNorm makes progress above {TRAINS:g}, on few pairs and on all. "
        "Seed by seed: DyT makes more progress than LayerNorm on few pairs, and less on all: the "
        "differences are above and below 0."
    )
    drawing = Drawing(name="progress", x="lr", y="progress", by=("arm", "study"), log_x=True)

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Two norms on two corpora."""
        norms = ["layer", "dyt"]
        return {"all": normed(budget, norms), "few": normed(budget, norms, few=True)}

    def records(self, budget: Budget) -> Mapping[str, int]:
        """Few."""
        return {**super().records(budget), "few": FEW[budget]}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """Better here, worse there."""
        few, every = (
            paired(*(tuned(rows, study=s, arm=arm) for arm in ("pre_ln dyt", "pre_ln")))
            for s in ("few", "all")
        )
        layer = {study: tuned(rows, study=study, arm="pre_ln") for study in ("few", "all")}
        return [
            *(
                Check(f"progress of layer on {s} pairs", over_seeds(found), TRAINS, premise=True)
                for s, found in layer.items()
            ),
            Check("progress on few pairs, dyt minus layer", few, low=0),
            Check("progress on all pairs, dyt minus layer", every, high=0),
        ]
