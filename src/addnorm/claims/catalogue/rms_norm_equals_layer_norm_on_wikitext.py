"""Claim: on WikiText-2, too, RMSNorm trains as well as LayerNorm."""

from collections.abc import Mapping, Sequence
from typing import Any

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, register
from addnorm.claims.experiments import FIFTH_ROUND, LARGE, SHALLOW_LRS, SMALL, TINY
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    PROGRESS_DEFINITION,
    ComparisonClaim,
    make_progress_chart,
)
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row


@register(
    Card(
        name="rms_norm_equals_layer_norm_on_wikitext",
        title="RMSNorm equals LayerNorm on WikiText-2",
        formula="loss(RMSNorm) = loss(LayerNorm)",
        paper="Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, arXiv 1910.07467",
        summary="On real text, too, RMSNorm trains a language model as well as LayerNorm.",
    )
)
class RmsNormEqualsLayerNormOnWikitext(ComparisonClaim):
    """Progress of RMSNorm and LayerNorm in a Pre-LN language model."""

    # NOTE[DIFF]: the paper measures translation, reading comprehension and retrieval.
    paper_location = "section 5 and tables 2 to 9"
    about = ("rms", "layer")
    finding = "RMSNorm's progress minus LayerNorm's is {progress, rms minus layer}"
    measured_on = "3,000 paragraphs of WikiText-2, 3 layers of width 32, 600 steps"
    reach = "losses at an early stage of training"
    experiment = (
        "A language model of three Pre-LN layers with either norm reads 3,000 paragraphs of "
        "WikiText-2, in pieces of words, over the same learning rates. " + PROGRESS_DEFINITION
    )
    rule = (
        "Premise: LayerNorm, the reference, learns. The progress of RMSNorm differs from its by "
        f"less than {NEGLIGIBLE_PROGRESS:g}, seed by seed."
    )
    pilot = (
        "a run by this rule with 4 other seeds, 200 steps and learning rates up to 3e-2, which was "
        "best: undecided, -0.02 ± 0.09. This round has more steps, which makes the noise smaller "
        "beside the progress, more seeds and a higher rate. No run of it had been looked at when "
        "this was written."
    )
    corrected = True
    has_new_rows = True
    chart = make_progress_chart()

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        at: dict[Budget, dict[str, Any]] = {
            "smoke": TINY | {"depth": 1, "lr": [1e-3]},
            "standard": SMALL
            | FIFTH_ROUND
            | {"depth": 3, "steps": 600, "seeds": 8, "lr": [2e-3, 8e-3, 3e-2, 0.1]}
            | {"valid_every": 600, "save_every": 600},
            "full": LARGE | {"depth": 6, "steps": 3000, "seeds": 5, "lr": SHALLOW_LRS},
        }
        same: dict[str, Any] = {
            "task": "lm", "tokenizer": "bpe", "vocab": 2000, "max_length": 64, "dropout": 0.0,
            "score": 0, "monitor_every": 0, "wiring": ["pre_ln"], "norm": ["layer", "rms"],
            "schedule": "constant",
        }  # fmt: skip
        spec = at[budget]
        return {"text": parse_comparison(same | spec | {"warmup": spec["steps"] // 10})}

    def corpora(self, budget: Budget) -> Mapping[str, str]:
        return {} if budget == "smoke" else {"text": "wikitext-2"}

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        layer, rms = (best_setting_values(rows, arm=arm) for arm in ("pre_ln", "pre_ln rms"))
        return [
            Check(
                "progress, rms minus layer",
                paired_difference(rms, layer),
                -NEGLIGIBLE_PROGRESS,
                NEGLIGIBLE_PROGRESS,
            )
        ]
