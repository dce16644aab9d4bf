"""RMSNorm is as good as LayerNorm, in less time."""

import math
from collections.abc import Mapping, Sequence

from addnorm.claims.base import Budget, Drawing, register
from addnorm.claims.fields import normed
from addnorm.claims.training import LITTLE, PROGRESS, TRAINS, ByTraining, tuned
from addnorm.claims.verdict import Check, over_seeds
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.lab.spec import Comparison
from addnorm.lab.statistics import paired


@register(
    Card(
        name="rms_norm_equals_layer_norm",
        title="RMSNorm equals LayerNorm",
        formula="loss(RMSNorm) = loss(LayerNorm), time(RMSNorm) < time(LayerNorm)",
        paper=("Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, arXiv 1910.07467"),
        summary="RMSNorm trains as well as LayerNorm and takes less time.",
    )
)
class RmsNormEqualsLayerNorm(ByTraining):
    """Both norms in Pre-LN, their progress and their speed.

    speed = tokens a second of processor time, the median over steps
    """

    place = "section 5 and tables 2 to 9"
    experiment = (
        "Pre-LN with either norm learns to translate dates over one ladder of learning rates; "
        "tokens a second of processor time are counted at every step. " + PROGRESS
    )
    rule = (
        f"LayerNorm makes progress of {TRAINS:g} or more; that of RMSNorm differs from it by "
        f"{LITTLE:g} at most, seed by seed; and ln(speed) of RMSNorm is above that of LayerNorm."
    )
    drawing = Drawing(name="progress", x="lr", y="progress", log_x=True)
    wanted = ("progress", "rate")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Two norms."""
        return {"norms": normed(budget, ["layer", "rms"])}

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """As good, and faster."""
        rms, layer = (tuned(rows, arm=arm) for arm in ("pre_ln rms", "pre_ln"))
        speeds = [
            {seed: math.log(rate) for seed, rate in tuned(rows, "rate", arm=arm).items()}
            for arm in ("pre_ln rms", "pre_ln")
        ]
        return [
            Check("progress of layer", over_seeds(layer), low=TRAINS),
            Check("progress, rms minus layer", paired(rms, layer), -LITTLE, LITTLE),
            Check("ln(speed), rms minus layer", paired(*speeds), low=0),
        ]
