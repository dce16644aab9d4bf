"""BatchNorm in an encoder is worse than LayerNorm, and breaks at small batches."""

from collections.abc import Mapping, Sequence
from typing import Any

from addnorm.claims.base import Budget, Drawing, register
from addnorm.claims.training import GUIDE, PROGRESS, ByTraining, tuned
from addnorm.claims.verdict import Check
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.lab.spec import Comparison
from addnorm.lab.statistics import paired

LARGE, SMALL = "large batches", "small batches"


@register(
    Card(
        name="batch_norm_is_worse",
        title="BatchNorm is worse",
        formula="loss(BatchNorm) > loss(LayerNorm), and the more so the smaller the batch",
        paper=(
            "Shen et al., PowerNorm: Rethinking Batch Normalization in Transformers, 2020, "
            "arXiv 2003.07845"
        ),
        summary="BatchNorm in an encoder is worse than LayerNorm, and breaks at small batches.",
    )
)
class BatchNormIsWorse(ByTraining):
    """Both norms in a Pre-LN encoder, at two sizes of batch."""

    # NOTE[DIFF]: the paper trains translators and language models; here a classifier, because in a
    # causal stack BatchNorm would show later tokens.
    place = "section 1, table 1 and section 3"
    experiment = (
        "A Pre-LN encoder with either norm learns to tell from a docstring to which package of "
        "Python's library it belongs, over one ladder of learning rates, with batches of two "
        "sizes and as many tokens in all. " + PROGRESS
    )
    rule = (
        "Seed by seed: LayerNorm makes more progress than BatchNorm at large batches, and the "
        "distance is larger at small ones: both differences are above 0."
    )
    drawing = Drawing(
        name="progress", x="lr", y="progress", by=("arm", "study"), log_x=True, guides=GUIDE
    )

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Two norms at two sizes of batch."""
        at: dict[Budget, dict[str, Any]] = {
            "smoke": {"dim": 8, "heads": 2, "depth": 1, "steps": 4, "seeds": 1, "lr": [1e-3]},
            "standard": {"dim": 32, "heads": 2, "depth": 2, "steps": 150, "seeds": 3}
            | {"lr": [1e-3, 3e-3, 1e-2]},
            "full": {"dim": 128, "heads": 4, "depth": 6, "steps": 2000, "seeds": 5}
            | {"lr": [3e-4, 1e-3, 3e-3, 1e-2]},
        }
        same: dict[str, Any] = {
            "task": "classify", "wiring": ["pre_ln"], "norm": ["layer", "batch"], "score": 0,
            "monitor_every": 0, "tokenizer": "char", "max_length": 64, "dropout": 0.0,
        }  # fmt: skip
        spec = same | at[budget]
        fewer = {"steps": 8 * spec["steps"], "batch_tokens": 64}
        return {
            LARGE: Comparison.of(spec | {"batch_tokens": 512}),
            SMALL: Comparison.of(spec | fewer),
        }

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """The distance, and how it grows."""
        distances = {}
        for study in (LARGE, SMALL):
            layer, batch = (tuned(rows, study=study, arm=a) for a in ("pre_ln", "pre_ln batch"))
            shared = layer.keys() & batch.keys()
            distances[study] = {seed: layer[seed] - batch[seed] for seed in shared}
        none = dict.fromkeys(distances[LARGE], 0.0)
        return [
            Check(f"progress at {LARGE}, layer minus batch", paired(distances[LARGE], none), low=0),
            Check(
                f"the same at {SMALL} minus that at {LARGE}",
                paired(distances[SMALL], distances[LARGE]),
                low=0,
            ),
        ]
