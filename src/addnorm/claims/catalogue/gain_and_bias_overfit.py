"""Claim: LayerNorm without gain and bias is as good or better and over-fits less."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, register
from addnorm.claims.experiments import SMALL_CORPUS_RECORDS, norm_comparison
from addnorm.claims.progress_scale import best_setting_rows, best_setting_values
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    PROGRESS_DEFINITION,
    RULE_CHANGED_ON_SEEN_ROWS,
    ComparisonClaim,
    TrainedClaim,
    make_progress_chart,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row

WITHOUT_AFFINE = "layer(affine=False)"
MIN_GAP_NATS = 0.1
"""Smallest difference of gaps that counts, about 0.05 of the loss of the baseline."""
GAP_LABEL = "gap on few pairs in nats, without minus with"


@register(
    Card(
        name="gain_and_bias_overfit",
        title="Gain and bias over-fit",
        formula="loss(LN without gain and bias) <= loss(LN), with a smaller gap to training loss",
        paper=(
            "Xu et al., Understanding and Improving Layer Normalization, 2019, arXiv 1911.07013"
        ),
        summary=(
            "LayerNorm without gain and bias is at least as good as with them, because they "
            "increase the risk of over-fitting."
        ),
    )
)
class GainAndBiasOverfit(ComparisonClaim):
    """LayerNorm with and without gain and bias, on all data and on a small subset.

    gap = validation loss - training loss, at the end
    """

    paper_location = "section 3.1 and table 2"
    about = ("layer",)
    finding = (
        "without gain and bias progress changes by {progress on all pairs, without minus with} "
        "on all pairs and {progress on few pairs, without minus with} on few, and the gap to "
        "the training loss by {gap on few pairs in nats, without minus with} nats"
    )
    measured_on = "dates, 3+3 layers of width 32, 200 or 5,000 pairs"
    reach = "differences below 0.05 are not resolved; published gains may be smaller"
    discussion = (
        "Leaving gain and bias out costs nothing, as the paper says. That they over-fit is not "
        "seen: the gap between training and validation loss stays the same. The paper trains to"
        " convergence on larger data; here all weights together memorize 200 pairs, and gain "
        "and bias are a small part of them."
    )
    experiment = (
        "Pre-LN with and without gain and bias in its norms learns to translate dates, from all "
        "5,000 pairs and, with more steps, from a small subset that it can memorize; each over "
        "the same learning rates. " + PROGRESS_DEFINITION
    )
    rule = (
        "Premise: with gain and bias, the reference, it learns, on all pairs and on few. Without "
        f"them it makes less than {NEGLIGIBLE_PROGRESS:g} less; and on few pairs, both at the "
        "setting that is best with them, the gap between validation and training loss is smaller "
        f"by more than {MIN_GAP_NATS:g} nats, seed by seed. Until the third round: smaller at "
        "all. Such a rule cannot be refuted if there is no difference."
    )
    pilot = TrainedClaim.pilot + RULE_CHANGED_ON_SEEN_ROWS
    corrected = True
    chart = make_progress_chart("arm", "study")
    row_names = ("progress", "loss", "train_loss")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        norms = ["layer", WITHOUT_AFFINE]
        return {
            "all": norm_comparison(budget, norms),
            "few": norm_comparison(budget, norms, small_corpus=True),
        }

    def records(self, budget: Budget) -> Mapping[str, int]:
        return {**super().records(budget), "few": SMALL_CORPUS_RECORDS[budget]}

    def scale_of(self, study: str) -> str:
        return study

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        arms = (f"pre_ln {WITHOUT_AFFINE}", "pre_ln")
        checks = []
        for study in ("all", "few"):
            bare, usual = (best_setting_values(rows, study=study, arm=arm) for arm in arms)
            label = f"progress on {study} pairs"
            checks.append(
                Check(
                    f"{label}, without minus with",
                    paired_difference(bare, usual),
                    low=-NEGLIGIBLE_PROGRESS,
                )
            )
        gaps = paired_difference(
            *(_generalization_gap(rows, arm, reference_arm=arms[1]) for arm in arms)
        )
        return [*checks, Check(GAP_LABEL, gaps, high=-MIN_GAP_NATS)]


def _generalization_gap(rows: Sequence[Row], arm: str, *, reference_arm: str) -> dict[int, float]:
    """Return the gap of an arm by seed, at the best learning rate of the reference arm."""
    rates = {
        row["seed"]: row["lr"] for row in best_setting_rows(rows, study="few", arm=reference_arm)
    }
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
