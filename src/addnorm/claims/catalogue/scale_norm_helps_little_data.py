"""ScaleNorm helps where there is little data."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, Drawing, register
from addnorm.claims.experiments import FEW, normed
from addnorm.claims.trained import PROGRESS, ByTraining, tuned
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired
from addnorm.core.cards import Card
from addnorm.core.rows import Row


@register(
    Card(
        name="scale_norm_helps_little_data",
        title="ScaleNorm on little data",
        formula="loss(g * x / |x|) < loss(LayerNorm) on a small corpus",
        paper=(
            "Nguyen and Salazar, Transformers without Tears: Improving the Normalization of "
            "Self-Attention, 2019, arXiv 1910.05895"
        ),
        summary="With little data ScaleNorm, which has one scalar, does better than LayerNorm.",
    )
)
class ScaleNormHelpsLittleData(ByTraining):
    """Both norms in Pre-LN on few pairs."""

    # NOTE[DIFF]: the paper's best has FixNorm on the embedding table as well; here ScaleNorm alone,
    # and FixNorm in a claim of its own.
    place = "section 4.2 and table 2"
    experiment = (
        "Pre-LN with either norm learns to translate dates from a few pairs, which it can learn by "
        "heart, over one ladder of learning rates. " + PROGRESS
    )
    rule = "ScaleNorm makes more progress than LayerNorm, seed by seed: the difference is above 0."
    drawing = Drawing(name="progress", x="lr", y="progress", log_x=True)

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Two norms."""
        return {"few": normed(budget, ["layer", "scale"], few=True)}

    def records(self, budget: Budget) -> Mapping[str, int]:
        """Few."""
        return {**super().records(budget), "few": FEW[budget]}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """Better."""
        ahead = paired(tuned(rows, arm="pre_ln scale"), tuned(rows, arm="pre_ln"))
        return [Check("progress on few pairs, scale minus layer", ahead, low=0)]
