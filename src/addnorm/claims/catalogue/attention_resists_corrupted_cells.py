"""Claim: a Transformer over columns is more robust to missing and noisy cells than an MLP."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, ChartSpec, ClaimWorkspace, register
from addnorm.claims.experiments import SHALLOW_LRS
from addnorm.claims.progress_scale import best_setting_rows, best_setting_values
from addnorm.claims.table_datasets import TARGET_COLUMN
from addnorm.claims.training_claims import (
    TABLE_PROGRESS_DEFINITION,
    TRAINED_THRESHOLD,
    ComparisonClaim,
)
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row

CORRUPTED_FRACTIONS = [0.2, 0.4, 0.6]
MODELS = {
    "Transformer": {"model": "ft_transformer", "wiring": ["pre_ln(first_norm=False)"]},
    "MLP": {"model": "mlp", "wiring": ["pre_ln"]},
}
TABLES = {"views": "views-gaps", "breast cancer": "breast_cancer-gaps"}
CORRUPTIONS = ("missing", "noise")


@register(
    Card(
        name="attention_resists_corrupted_cells",
        title="Attention over columns resists corrupted cells",
        formula="accuracy(spoilt) / accuracy(whole): Transformer > MLP",
        paper=(
            "Huang et al., TabTransformer: Tabular Data Modeling Using Contextual Embeddings, "
            "2020, arXiv 2012.06678"
        ),
        summary=(
            "A Transformer over the columns of a table loses less accuracy than an MLP when cells "
            "are missing or noisy."
        ),
    )
)
class AttentionResistsCorruptedCells(ComparisonClaim):
    """Both models on held-out rows with removed or exchanged cells.

    kept = accuracy on corrupted rows / accuracy on the original rows
    """

    # NOTE[DIFF]: the paper corrupts the categories of TabTransformer and reports the area under the
    # curve; here numbers and categories are corrupted, for FT-Transformer, which reads both, and
    # accuracy is reported. The paper replaces a missing embedding by the mean embedding; here a
    # tenth of all training cells is missing, so that both models learn an embedding for it.
    paper_location = "section 3.3, figures 4 and 5"
    about = ()
    finding = (
        "the part of its accuracy that the Transformer keeps, minus that of the MLP, is "
        "{missing: kept by Transformer minus MLP} with missing cells and {noise: kept by "
        "Transformer minus MLP} with noise"
    )
    measured_on = "breast cancer and a synthetic table, 2 layers of width 32"
    reach = "small tables; a difference of 0.02 is not resolved by five seeds"
    experiment = (
        "FT-Transformer and a residual MLP learn two tables with a tenth of their cells missing: "
        "breast cancer, which comes with scikit-learn, and a synthetic one, whose twelve columns "
        "are noisy views of four hidden numbers; over the same learning rates. Then 20, 40 and "
        "60 % of the cells of held-out rows are removed, or replaced by cells of other rows. "
        + TABLE_PROGRESS_DEFINITION
    )
    rule = (
        f"Premise: the Transformer, the reference, learns, and the MLP makes progress above "
        f"{TRAINED_THRESHOLD:g} on both tables. Seed by "
        "seed, the mean over tables and shares: the Transformer keeps a larger part of its "
        "accuracy than the MLP, with missing cells and with noise: both differences are above 0."
    )
    pilot = "no cell of this claim; the ladder is that of the other claim about tables."
    chart = ChartSpec(name="accuracy", x="share", y="accuracy", group_by=("study", "what"))
    row_names = ("progress", "score")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        at: dict[Budget, dict[str, Any]] = {
            "smoke": {"dim": 8, "heads": 2, "depth": 1, "steps": 4, "seeds": 1, "lr": [1e-3]},
            "standard": {
                "dim": 32,
                "heads": 4,
                "depth": 2,
                "steps": 200,
                "seeds": 5,
                "lr": SHALLOW_LRS,
            },
            "full": {
                "dim": 96,
                "heads": 8,
                "depth": 3,
                "steps": 3000,
                "seeds": 10,
                "lr": SHALLOW_LRS,
            },
        }
        same: dict[str, Any] = {
            "task": "table", "target": TARGET_COLUMN, "batch_size": 64,
            "missing": CORRUPTED_FRACTIONS, "noise": CORRUPTED_FRACTIONS,
        }  # fmt: skip
        wide = {"dim": 2 * at[budget]["dim"]}  # gives the MLP about as many parameters
        return {
            _study_name(table, model): parse_comparison(
                same | at[budget] | choice | (wide if model == "MLP" else {})
            )
            for table in TABLES
            for model, choice in MODELS.items()
        }

    def tables(self, budget: Budget) -> Mapping[str, str]:
        return {_study_name(name, model): file for name, file in TABLES.items() for model in MODELS}

    def rows(self, budget: Budget, workspace: ClaimWorkspace) -> list[Row]:
        rows = super().rows(budget, workspace)
        accuracies = [
            accuracy
            for study in self.tables(budget)
            for row in best_setting_rows(rows, study=study)
            for accuracy in _accuracy_rows(row)
        ]
        return [row for row in rows if row["name"] == "progress"] + accuracies

    def is_reference(self, row: Row) -> bool:
        return str(row["study"]).endswith(next(iter(MODELS)))

    def scale_of(self, study: str) -> str:
        return study.partition(", ")[0]

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        trained = {
            study: best_setting_values(rows, study=study)
            for study in self.tables("standard")
            if study.endswith("MLP")
        }
        checks = [
            Check(
                f"{study}: progress",
                estimate_over_seeds(values),
                low=TRAINED_THRESHOLD,
                premise=True,
            )
            for study, values in trained.items()
        ]
        for what in CORRUPTIONS:
            ours, theirs = (_retained_accuracy(rows, model, what) for model in MODELS)
            checks.append(
                Check(
                    f"{what}: kept by Transformer minus MLP", paired_difference(ours, theirs), low=0
                )
            )
            checks += [
                Check(f"{what}: kept by {model}", estimate_over_seeds(kept))
                for model, kept in zip(MODELS, (ours, theirs), strict=True)
            ]
        return checks


def _study_name(table: str, model: str) -> str:
    return f"{table}, {model}"


def _accuracy_rows(row: Row) -> list[Row]:
    """Convert a score row to accuracy rows; uncorrupted rows are share 0 of both kinds."""
    if row["name"] != "score":
        return []
    fields = {name: value for name, value in row.items() if name != "which"}
    kind, _, share = str(row["which"]).removeprefix("accuracy, ").partition(" ")
    kinds, fraction = (CORRUPTIONS, 0.0) if kind == "accuracy" else ((kind,), float(share))
    return [fields | {"name": "accuracy", "what": each, "share": fraction} for each in kinds]


def _retained_accuracy(rows: Sequence[Row], model: str, what: str) -> dict[int, float]:
    """Return the fraction of accuracy that a model keeps, by seed (mean over tables and shares)."""
    accuracies: dict[tuple[int, str], dict[float, float]] = {}
    for row in rows:
        if row["name"] == "accuracy" and row["what"] == what and row["study"].endswith(model):
            accuracies.setdefault((row["seed"], row["study"]), {})[row["share"]] = row["value"]
    parts: dict[int, list[float]] = {}
    for (seed, _), by_share in accuracies.items():
        whole = by_share.get(0.0, 0.0)
        kept = [value / whole for share, value in by_share.items() if share > 0 and whole > 0]
        parts.setdefault(seed, []).extend(kept)
    return {seed: fmean(kept) for seed, kept in parts.items() if kept}
