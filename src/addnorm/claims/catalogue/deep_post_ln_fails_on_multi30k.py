"""Claim: on Multi30k, too, deep Post-LN does not train where Pre-LN and B2T do."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, register
from addnorm.claims.deep_training_claims import PROGRESS_BY_LR, check_post_ln_fails
from addnorm.claims.experiments import FIFTH_ROUND, use_captions, very_deep_comparison
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import (
    PROGRESS_DEFINITION,
    TRAINED_THRESHOLD,
    ComparisonClaim,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row


@register(
    Card(
        name="deep_post_ln_fails_on_multi30k",
        title="Deep Post-LN fails on Multi30k",
        formula="x <- N(x + f(x)) fails where x <- x + f(N(x)) and B2T train",
        paper=(
            "Takase et al., On Layer Normalizations and Residual Connections in Transformers, "
            "2022, arXiv 2206.00330"
        ),
        summary=(
            "On real translation, too, Post-LN with eighteen layers does not train where Pre-LN "
            "does, and a connection from the bottom to the top of each layer (B2T) repairs it."
        ),
    )
)
class DeepPostLnFailsOnMulti30k(ComparisonClaim):
    """Post-LN, B2T and Pre-LN of eighteen layers on captions of images."""

    # NOTE[DIFF]: the paper trains 18 layers on WMT for days; here on 10,000 pairs of Multi30k for a
    # minute.
    paper_location = "section 5 and tables 2 and 3"
    about = ("post_ln", "b2t", "pre_ln")
    finding = "Post-LN reaches {progress of post_ln} of Pre-LN's progress and B2T {progress of b2t}"
    measured_on = "10,000 captions of Multi30k, 18+18 layers of width 32, 120 steps"
    reach = "losses at an early stage; no translation is scored"
    experiment = (
        "Encoder and decoder of eighteen layers each learn to translate captions from English to "
        "German (10,000 pairs of Multi30k, in pieces of words). Post-LN is tuned over learning "
        "rate and warm-up, B2T over the learning rate, with warm-up; Pre-LN runs at one rate "
        "without it, as on dates. " + PROGRESS_DEFINITION
    )
    rule = (
        f"Post-LN at its best makes progress below {TRAINED_THRESHOLD:g}; B2T makes more than "
        f"{TRAINED_THRESHOLD:g} more than Post-LN, seed by seed."
    )
    pilot = (
        "a run by this rule with other seeds, 120 steps and learning rates up to 2e-3, which was "
        "best for B2T: Post-LN made no progress and B2T 0.9 of Pre-LN's, but the premise about "
        "the edges was not held. This round has two higher rates for B2T. It was planned with 240 "
        "steps and a lower rate for B2T, too; both were taken back for lack of time, before any "
        "run of it."
    )
    corrected = True
    has_new_rows = True
    chart = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        spec = very_deep_comparison(
            budget,
            ["post_ln"],
            arms_without_warmup=["pre_ln"],
            tuned_arms=["b2t"],
            tuned_lrs=(1e-3, 2e-3, 4e-3, 8e-3),
            seeds=3,
            **FIFTH_ROUND,
        )
        return {"deep": use_captions(spec)}

    def corpora(self, budget: Budget) -> Mapping[str, str]:
        return {} if budget == "smoke" else {"deep": "multi30k"}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        post, b2t = (best_setting_values(rows, arm=arm) for arm in ("post_ln", "b2t"))
        return [
            check_post_ln_fails(rows, premise=False),
            Check("progress of b2t", estimate_over_seeds(b2t), low=TRAINED_THRESHOLD),
            Check("b2t minus post_ln", paired_difference(b2t, post), low=TRAINED_THRESHOLD),
        ]
