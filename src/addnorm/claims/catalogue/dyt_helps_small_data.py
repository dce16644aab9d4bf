"""Claim: DyT helps with few training tokens and hurts with many."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, register
from addnorm.claims.experiments import SMALL_CORPUS_RECORDS, norm_comparison
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import PROGRESS_DEFINITION, ComparisonClaim, make_progress_chart
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row


@register(
    Card(
        name="dyt_helps_small_data",
        title="DyT on little data",
        formula="loss(tanh(alpha * x)) < loss(LayerNorm) on few tokens, > on many",
        paper=(
            "a study of DyT as a regulariser, 2026, arXiv 2604.23434 (read in a summary only), "
            "about Zhu et al., Transformers without Normalization, 2025, arXiv 2503.10622"
        ),
        summary="DyT instead of LayerNorm helps with little training data and hurts with much.",
    )
)
class DytHelpsSmallData(ComparisonClaim):
    """DyT and LayerNorm in Pre-LN on a small and a larger corpus."""

    # NOTE[DIFF]: the study was read in a summary only, so that its settings are not known; alpha
    # starts at its default and is not tuned.

    paper_location = "its tables of validation loss by model size and tokens"
    about = ("dyt", "layer")
    finding = (
        "DyT's progress minus LayerNorm's is {progress on few pairs, dyt minus layer} on few "
        "pairs and {progress on all pairs, dyt minus layer} on all"
    )
    measured_on = "dates, 3+3 layers of width 32, 200 or 5,000 pairs"
    reach = "alpha is not tuned and no other regularizer is used"
    discussion = (
        "The study was read in a summary only. Here 200 pairs are memorized without any "
        "regularizer, alpha starts at its default and is not tuned, and DyT learns more slowly "
        "than LayerNorm in the fixed number of steps, so that it has no time to regularize "
        "anything."
    )
    experiment = (
        "Pre-LN with either norm learns to translate dates, from all 5,000 pairs and, with more "
        "steps, from a small subset that it can memorize; each over the same learning rates. "
        + PROGRESS_DEFINITION
    )
    rule = (
        "Premise: LayerNorm, the reference, learns, on few pairs and on all. "
        "Seed by seed: DyT makes more progress than LayerNorm on few pairs, and less on all: the "
        "differences are above and below 0."
    )
    chart = make_progress_chart("arm", "study")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        norms = ["layer", "dyt"]
        return {
            "all": norm_comparison(budget, norms),
            "few": norm_comparison(budget, norms, small_corpus=True),
        }

    def records(self, budget: Budget) -> Mapping[str, int]:
        return {**super().records(budget), "few": SMALL_CORPUS_RECORDS[budget]}

    def scale_of(self, study: str) -> str:
        return study

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        few, every = (
            paired_difference(
                *(best_setting_values(rows, study=s, arm=arm) for arm in ("pre_ln dyt", "pre_ln"))
            )
            for s in ("few", "all")
        )
        return [
            Check("progress on few pairs, dyt minus layer", few, low=0),
            Check("progress on all pairs, dyt minus layer", every, high=0),
        ]
