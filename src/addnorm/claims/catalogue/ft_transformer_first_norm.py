"""Claim: removing the first norm of FT-Transformer matters."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, register
from addnorm.claims.experiments import SHALLOW_LRS, THIRD_ROUND
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.table_datasets import TARGET_COLUMN
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    TABLE_PROGRESS_DEFINITION,
    TRAINED_GUIDE,
    ComparisonClaim,
    make_progress_chart,
)
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.spec import Comparison
from addnorm.core.cards import Card
from addnorm.core.rows import Row

WITHOUT_FIRST_NORM, WITH_FIRST_NORM = "pre_ln(first_norm=False)", "pre_ln"
TABLES = ("waves", "digits", "breast_cancer")
TABLES_PER_BUDGET: dict[Budget, int] = {"smoke": 1, "standard": 2, "full": 3}
"""Number of tables used in each budget."""

FIRST_NORM_KEYS: dict[str, Any] = {
    "task": "table", "target": TARGET_COLUMN, "numeric": "linear",
    "wiring": [WITHOUT_FIRST_NORM, WITH_FIRST_NORM],
    "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "batch_size": 64,
    "score": 0,
}  # fmt: skip
"""Keys of every comparison with and without the first norm."""


@register(
    Card(
        name="ft_transformer_first_norm",
        title="FT-Transformer without its first norm",
        formula="loss(first attention reads x) < loss(first attention reads N(x))",
        paper=(
            "Gorishniy et al., Revisiting Deep Learning Models for Tabular Data, 2021, "
            "arXiv 2106.11959"
        ),
        summary=(
            "In a Transformer over the columns of a table it matters to remove the very first "
            "norm: Pre-LN is clearly worse with it."
        ),
    )
)
class FtTransformerFirstNorm(ComparisonClaim):
    """FT-Transformer with and without the norm before its first attention."""

    # NOTE[DIFF]: the paper uses eleven large tables; here a few small ones, one of them synthetic,
    # and no dropout. The documentation of the released code calls the removal crucial.
    paper_location = "section 3.3; the documentation of the package rtdl_revisiting_models"
    about = ("pre_ln",)
    finding = (
        "the progress without the first norm minus that with it is {without minus with, mean "
        "over tables}"
    )
    measured_on = "a synthetic table and handwritten digits, 2 layers of width 32"
    reach = "each model at its best of four learning rates; robustness to the rate is not judged"
    experiment = (
        "FT-Transformer with numbers as linear tokens learns a synthetic table with a nonlinear "
        "target (waves) and one that comes with scikit-learn (digits, 64 pixels); in the "
        "full budget also breast cancer. The reference is the model without the norm. "
        "Each is trained with and without the very first norm, "
        "over the same learning rates; the loss is that of the best epoch. "
        + TABLE_PROGRESS_DEFINITION
    )
    discussion = (
        "The statement comes from the documentation of the released code, for models of width 192 "
        "that are trained to convergence with dropout at one small learning rate. Here models of "
        "width 32 are trained for 200 steps without dropout, each at its best of four rates. On "
        "digits the model with the norm is slightly better. At the largest rate, 0.03, the model "
        "without it makes clearly more progress (0.76 against 0.46 on waves, 0.88 against 0.72 on "
        "digits), so the removal may matter where the rate is not tuned."
    )
    rule = (
        "Premise: without the first norm, the reference, it learns every table. Seed by seed, the "
        "mean over the tables: it makes more progress without the first norm than with it, by more "
        f"than {NEGLIGIBLE_PROGRESS:g}. Single tables are told and not judged."
    )
    pilot = (
        "two rounds with other seeds, of which one table (diabetes, 442 rows) varied so much "
        "between seeds that both were undecided: 0.13 ± 0.06 there and 0.008 ± 0.011 on waves. "
        "Diabetes was replaced by digits, of which no cell had been trained. No run of this round "
        "had been looked at when the rule was written."
    )
    corrected = True
    has_new_rows = True
    chart = make_progress_chart("study", "arm", guides=TRAINED_GUIDE)

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        at: dict[Budget, dict[str, Any]] = {
            "smoke": {"dim": 8, "heads": 2, "depth": 1, "steps": 4, "seeds": 1, "lr": [1e-3]},
            "standard": {"dim": 32, "heads": 4, "depth": 2, "steps": 200, "seeds": 5}
            | THIRD_ROUND
            | {"lr": SHALLOW_LRS},
            "full": {"dim": 192, "heads": 8, "depth": 3, "steps": 3000, "seeds": 8}
            | {"lr": [5e-5, 2e-4, 8e-4, 3e-3]},
        }
        return {
            table: parse_comparison(FIRST_NORM_KEYS | at[budget]) for table in self.tables(budget)
        }

    def tables(self, budget: Budget) -> Mapping[str, str]:
        return {table: table for table in TABLES[: TABLES_PER_BUDGET[budget]]}

    def is_reference(self, row: Row) -> bool:
        return bool(row["arm"] == WITHOUT_FIRST_NORM)

    def scale_of(self, study: str) -> str:
        return study

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        return check_first_norm(rows)


def check_first_norm(rows: Sequence[Row]) -> list[Check]:
    """Return the gain without the first norm: of each table, told, and of their mean, judged."""
    tables = list(dict.fromkeys(row["study"] for row in rows))
    gains = {table: _gain_without(rows, table) for table in tables}
    shared = _common_seeds(list(gains.values()))
    means = {seed: fmean(each[seed] for each in gains.values()) for seed in shared}
    return [
        *(
            Check(f"{table}: without minus with", estimate_over_seeds(gain))
            for table, gain in gains.items()
        ),
        Check(
            "without minus with, mean over tables",
            estimate_over_seeds(means),
            low=NEGLIGIBLE_PROGRESS,
        ),
    ]


def _gain_without(rows: Sequence[Row], table: str) -> dict[int, float]:
    bare, normed = (
        best_setting_values(rows, study=table, arm=arm)
        for arm in (WITHOUT_FIRST_NORM, WITH_FIRST_NORM)
    )
    return {seed: value - normed[seed] for seed, value in bare.items() if seed in normed}


def _common_seeds(values: Sequence[Mapping[int, float]]) -> list[int]:
    """Return the seeds that every table has."""
    every = [set(each) for each in values]
    return sorted(set.intersection(*every)) if every else []
