"""LayerNorm without gain and bias does as well or better, and over-fits less."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check, over_seeds
from addnorm.claims.claim import Budget, Drawing, register
from addnorm.claims.experiments import FEW, normed
from addnorm.claims.trained import LITTLE, PROGRESS, TRAINS, ByTraining, at_best, tuned
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired
from addnorm.core.cards import Card
from addnorm.core.rows import Row

SIMPLE = "layer(affine=False)"


@register(
    Card(
        name="gain_and_bias_overfit",
        title="Gain and bias over-fit",
        formula="loss(LN without gain and bias) <= loss(LN), with a smaller gap to training loss",
        paper=(
            "Xu et al., Understanding and Improving Layer Normalization, 2019, arXiv 1911.07013"
        ),
        summary=(
            "LayerNorm without its gain and bias does as well as with them or better, since they "
            "raise the risk of over-fitting."
        ),
    )
)
class GainAndBiasOverfit(ByTraining):
    """Both forms of LayerNorm on much data and on little.

    gap = validation loss - training loss, at the end
    """

    place = "section 3.1 and table 2"
    experiment = (
        "Pre-LN with and without gain and bias in its norms learns to translate dates, from all "
        "5,000 pairs and, for longer, from a few, which it can learn by heart; over one ladder of "
        "learning rates each. " + PROGRESS
    )
    rule = (
        f"Premise: with gain and bias it makes progress above {TRAINS:g}, on all pairs and on few. "
        f"Without them it makes less than {LITTLE:g} less; and on few pairs, both at the setting "
        "that is best with them, the gap between validation and training loss is smaller, seed by "
        "seed."
    )
    drawing = Drawing(name="progress", x="lr", y="progress", by=("arm", "study"), log_x=True)
    wanted = ("progress", "loss", "train_loss")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Two norms on two corpora."""
        norms = ["layer", SIMPLE]
        return {"all": normed(budget, norms), "few": normed(budget, norms, few=True)}

    def records(self, budget: Budget) -> Mapping[str, int]:
        """Few."""
        return {**super().records(budget), "few": FEW[budget]}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """As good everywhere, and a smaller gap where there is one."""
        arms = (f"pre_ln {SIMPLE}", "pre_ln")
        checks = []
        for study in ("all", "few"):
            bare, usual = (tuned(rows, study=study, arm=arm) for arm in arms)
            told = f"progress on {study} pairs"
            checks += [
                Check(f"{told}, with gain and bias", over_seeds(usual), low=TRAINS, premise=True),
                Check(f"{told}, without minus with", paired(bare, usual), low=-LITTLE),
            ]
        gaps = paired(*(_gap(rows, arm, like=arms[1]) for arm in arms))
        return [*checks, Check("gap on few pairs in nats, without minus with", gaps, high=0)]


def _gap(rows: Sequence[Row], arm: str, *, like: str) -> dict[int, float]:
    """By seed: the gap of an arm at the learning rate that is best for another."""
    rates = {row["seed"]: row["lr"] for row in at_best(rows, study="few", arm=like)}
    own = [row for row in rows if (row["study"], row["arm"]) == ("few", arm)]
    valid, train = (
        {
            r["seed"]: r["value"]
            for r in own
            if r["name"] == name and r["lr"] == rates.get(r["seed"])
        }
        for name in ("loss", "train_loss")
    )
    return {seed: valid[seed] - train[seed] for seed in valid.keys() & train.keys()}
