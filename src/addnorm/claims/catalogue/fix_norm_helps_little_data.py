"""Claim: FixNorm on the word vectors helps with little data."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, register
from addnorm.claims.experiments import SMALL_CORPUS_RECORDS, norm_comparison
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    PROGRESS_DEFINITION,
    RULE_CHANGED_ON_SEEN_ROWS,
    ComparisonClaim,
    make_progress_chart,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row

PLAIN, FIXED = "usual word vectors", "fixnorm"
NORMS = {"layer": "pre_ln", "scale": "pre_ln scale"}
"""Arms by the norm of the stack."""


@register(
    Card(
        name="fix_norm_helps_little_data",
        title="FixNorm on little data",
        formula="loss(word vectors w / |w|) < loss(word vectors w) on a small corpus",
        paper=(
            "Nguyen and Salazar, Transformers without Tears: Improving the Normalization of "
            "Self-Attention, 2019, arXiv 1910.05895"
        ),
        summary=(
            "With little data it helps to give all word vectors the same length (FixNorm), with "
            "LayerNorm as well as with ScaleNorm."
        ),
    )
)
class FixNormHelpsLittleData(ComparisonClaim):
    """Pre-LN with either norm, with plain word vectors and with word vectors of unit length.

    x = sqrt(dim) * e_w + position,    logit_w = h . e_w,    e_w = w / |w| or w
    """

    # NOTE[DIFF]: the paper translates five pairs of languages with 10,000 to 133,000 sentences,
    # with dropout and label smoothing; here dates, from a small set that can be memorized.
    paper_location = "sections 2.3 and 4.2, table 2"
    about = ("fixnorm", "layer", "scale")
    finding = (
        "FixNorm changes progress by {layer: fixnorm minus usual} with LayerNorm and {scale: "
        "fixnorm minus usual} with ScaleNorm"
    )
    measured_on = "dates, 3+3 layers of width 32, 300 steps on 200 pairs"
    reach = "differences below 0.05 are not resolved; published gains may be smaller"
    discussion = (
        "The paper translates between natural languages, with thousands of rare pieces of words"
        " whose vectors differ in length. Dates are a few dozen characters, all of them "
        "frequent, so that there is little for FixNorm to repair. Gains below 0.05, which may "
        "be the size of the published ones, would not be seen."
    )
    experiment = (
        "Pre-LN with LayerNorm and with ScaleNorm learns to translate dates from a small set of "
        "pairs that it can memorize; with plain word vectors, and with FixNorm, which normalizes "
        "each vector to length 1 wherever it is used, over the same learning rates. "
        + PROGRESS_DEFINITION
    )
    rule = (
        "Premise: LayerNorm with usual word vectors, the reference, learns. Seed by seed: FixNorm "
        "makes more progress than usual word vectors, with LayerNorm in the stack and with "
        f"ScaleNorm, by more than {NEGLIGIBLE_PROGRESS:g}, the difference below which two arms "
        "count as equal. FixNorm and ScaleNorm together against neither is told and not judged. "
        "Until the third round: by more than 0, which cannot be refuted if there is no "
        "difference."
    )
    pilot = (
        "before the first rule no cell with FixNorm; the settings are those of ScaleNorm's claim."
        + RULE_CHANGED_ON_SEEN_ROWS
    )
    corrected = True
    chart = make_progress_chart("arm", "study")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {
            PLAIN: norm_comparison(budget, list(NORMS), small_corpus=True),
            FIXED: norm_comparison(budget, list(NORMS), small_corpus=True, table_norm="fixnorm"),
        }

    def records(self, budget: Budget) -> Mapping[str, int]:
        return dict.fromkeys(self.comparisons(budget), SMALL_CORPUS_RECORDS[budget])

    def is_reference(self, row: Row) -> bool:
        return bool(row["study"] == PLAIN and row["arm"] == NORMS["layer"])

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        plain, fixed = (
            {norm: best_setting_values(rows, study=study, arm=arm) for norm, arm in NORMS.items()}
            for study in (PLAIN, FIXED)
        )
        both = paired_difference(fixed["scale"], plain["layer"])
        return [
            *(
                Check(
                    f"{norm}: fixnorm minus usual",
                    paired_difference(fixed[norm], plain[norm]),
                    low=NEGLIGIBLE_PROGRESS,
                )
                for norm in NORMS
            ),
            Check("fixnorm with scale minus usual with layer", both),
        ]
