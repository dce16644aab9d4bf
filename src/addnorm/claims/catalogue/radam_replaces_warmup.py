"""Claim: RAdam replaces warm-up for Post-LN."""

from collections.abc import Mapping, Sequence

from addnorm.claims.catalogue.post_ln_needs_warmup import POST_LN_LRS
from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, register
from addnorm.claims.experiments import FIFTH_ROUND, warmup_comparison
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    PROGRESS_DEFINITION,
    TRAINED_GUIDE,
    ComparisonClaim,
    make_progress_chart,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row

WARM, COLD, RADAM = "adamw, warm-up", "adamw, none", "radam, none"


@register(
    Card(
        name="radam_replaces_warmup",
        title="RAdam replaces warm-up",
        formula="loss(RAdam, no warm-up) = loss(Adam, warm-up) in Post-LN",
        paper=(
            "Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, 2019, "
            "arXiv 1908.03265"
        ),
        summary="RAdam trains Post-LN without warm-up as well as Adam does with it.",
    )
)
class RadamReplacesWarmup(ComparisonClaim):
    """Post-LN under Adam with and without warm-up, and under RAdam without."""

    paper_location = "sections 4 and 5.3; section 4 of Xiong et al. 2020, arXiv 2002.04745"
    about = ("post_ln",)
    finding = (
        "RAdam's progress without warm-up minus AdamW's with it is {radam minus adamw with "
        "warm-up}; AdamW loses {adamw, with warm-up minus without} without it"
    )
    measured_on = "dates, Post-LN of 6+6 layers of width 32, 160 steps"
    reach = "there is little to replace at this depth; see post_ln_needs_warmup"
    experiment = (
        "Post-LN of six layers each in encoder and decoder learns to translate dates, under AdamW "
        "with a warm-up of a quarter of the steps and without, and under RAdam without, over "
        "the same learning rates. The reference is Post-LN under AdamW with warm-up. "
        + PROGRESS_DEFINITION
    )
    rule = (
        f"RAdam without warm-up makes less than {NEGLIGIBLE_PROGRESS:g} less progress than AdamW "
        "with warm-up, seed by seed, each at its best rate. What warm-up brings under AdamW, and "
        "what RAdam brings over AdamW without it, at the best rates, is told and not judged: "
        "whether there is anything to replace is the claim post_ln_needs_warmup."
    )
    pilot = (
        "two rounds of this claim with other seeds: RAdam ended within 0.04 of AdamW with warm-up, "
        "then 0.05 ± 0.12 above it, with best rates at the edges. This round has closer and more "
        "learning rates and ten seeds. No run of it had been looked at when this was written."
    )
    corrected = True
    has_new_rows = True
    chart = make_progress_chart("study", guides=TRAINED_GUIDE)

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {
            study: warmup_comparison(
                budget,
                ["post_ln"],
                with_warmup=[warm],
                optimizer=optimizer,
                seeds=10,
                lrs=POST_LN_LRS,
                seed_round=FIFTH_ROUND,
            )
            for study, warm, optimizer in (
                (WARM, True, "adamw"),
                (COLD, False, "adamw"),
                (RADAM, False, "radam"),
            )
        }

    def is_reference(self, row: Row) -> bool:
        return bool(row["study"] == WARM)

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        warm, cold, radam = (
            best_setting_values(rows, study=study) for study in (WARM, COLD, RADAM)
        )
        return [
            Check(
                "radam minus adamw with warm-up",
                paired_difference(radam, warm),
                low=-NEGLIGIBLE_PROGRESS,
            ),
            Check("adamw, with warm-up minus without", paired_difference(warm, cold)),
            Check("radam minus adamw without warm-up", paired_difference(radam, cold)),
        ]
