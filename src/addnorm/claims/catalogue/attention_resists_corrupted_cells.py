"""A Transformer over columns stands missing and noisy features better than an MLP."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from addnorm.claims.checks import Check, over_seeds
from addnorm.claims.claim import Budget, Desk, Drawing, register
from addnorm.claims.experiments import HIGH
from addnorm.claims.tables import TARGET
from addnorm.claims.trained import ON_TABLES, TRAINS, ByTraining, at_best, tuned
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired
from addnorm.core.cards import Card
from addnorm.core.rows import Row

SHARES = [0.2, 0.4, 0.6]
MODELS = {
    "Transformer": {"model": "ft_transformer", "wiring": ["pre_ln(first_norm=False)"]},
    "MLP": {"model": "mlp", "wiring": ["pre_ln"]},
}
TABLES = {"views": "views-gaps", "breast cancer": "breast_cancer-gaps"}
SPOILT = ("missing", "noise")


@register(
    Card(
        name="attention_resists_corrupted_cells",
        title="Attention over columns stands spoilt cells",
        formula="accuracy(spoilt) / accuracy(whole): Transformer > MLP",
        paper=(
            "Huang et al., TabTransformer: Tabular Data Modeling Using Contextual Embeddings, "
            "2020, arXiv 2012.06678"
        ),
        summary=(
            "A Transformer over the columns of a table loses less than an MLP where features are "
            "missing or noisy."
        ),
    )
)
class AttentionResistsCorruptedCells(ByTraining):
    """Both models on held-out rows, some of whose cells are absent or those of other rows.

    kept = accuracy on spoilt rows / accuracy on the rows as they are
    """

    # NOTE[DIFF]: the paper spoils categories of TabTransformer and tells the area under the curve;
    # here numbers and categories, for FT-Transformer, which reads both, and accuracy. The paper
    # puts the mean embedding in the place of a missing one; here a tenth of all cells is absent in
    # training, so that both models know what absence is.
    place = "section 3.3, figures 4 and 5"
    experiment = (
        "FT-Transformer and a residual MLP learn two tables with a tenth of their cells absent: "
        "breast cancer, which comes with scikit-learn, and a made one, whose twelve columns are "
        "noisy views of four hidden numbers; over one ladder of learning rates. Then 20, 40 and "
        "60 % of the cells of held-out rows are taken away, or replaced by those of other rows. "
        + ON_TABLES
    )
    rule = (
        f"Premise: both models make progress above {TRAINS:g} on both tables. Seed by seed, the "
        "mean over tables and shares: the Transformer keeps a larger part of its accuracy than the "
        "MLP, with missing cells and with noise: both differences are above 0."
    )
    pilot = "no cell of this claim; the ladder is that of the other claim about tables."
    drawing = Drawing(name="accuracy", x="share", y="accuracy", by=("study", "what"))
    wanted = ("progress", "score")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Both models on every table."""
        at: dict[Budget, dict[str, Any]] = {
            "smoke": {"dim": 8, "heads": 2, "depth": 1, "steps": 4, "seeds": 1, "lr": [1e-3]},
            "standard": {"dim": 32, "heads": 4, "depth": 2, "steps": 200, "seeds": 5, "lr": HIGH},
            "full": {"dim": 96, "heads": 8, "depth": 3, "steps": 3000, "seeds": 10, "lr": HIGH},
        }
        same: dict[str, Any] = {
            "task": "table", "target": TARGET, "batch_size": 64, "missing": SHARES, "noise": SHARES,
        }  # fmt: skip
        wide = {"dim": 2 * at[budget]["dim"]}  # an MLP of as many parameters, about
        return {
            _study(table, model): Comparison.of(
                same | at[budget] | choice | (wide if model == "MLP" else {})
            )
            for table in TABLES
            for model, choice in MODELS.items()
        }

    def tables(self, budget: Budget) -> Mapping[str, str]:
        """A table for both models."""
        return {_study(name, model): made for name, made in TABLES.items() for model in MODELS}

    def rows(self, budget: Budget, desk: Desk) -> list[Row]:
        """Progress of all cells; accuracies where an arm is judged."""
        made = super().rows(budget, desk)
        progress = [row for row in made if row["name"] == "progress"]
        return progress + [
            told for study in self.tables(budget) for row in at_best(made, study=study)
            for told in _spoilt(row)
        ]  # fmt: skip

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        """Less is lost."""
        trained = {study: tuned(rows, study=study) for study in self.tables("standard")}
        checks = [
            Check(f"{study}: progress", over_seeds(found), low=TRAINS, premise=True)
            for study, found in trained.items()
        ]
        for what in SPOILT:
            ours, theirs = (_kept(rows, model, what) for model in MODELS)
            checks.append(
                Check(f"{what}: kept by Transformer minus MLP", paired(ours, theirs), low=0)
            )
            checks += [
                Check(f"{what}: kept by {model}", over_seeds(kept))
                for model, kept in zip(MODELS, (ours, theirs), strict=True)
            ]
        return checks


def _study(table: str, model: str) -> str:
    return f"{table}, {model}"


def _spoilt(row: Row) -> list[Row]:
    """A score as accuracies: whole rows stand at share 0 of both kinds."""
    if row["name"] != "score":
        return []
    where = {name: value for name, value in row.items() if name != "which"}
    kind, _, share = str(row["which"]).removeprefix("accuracy, ").partition(" ")
    kinds, at = (SPOILT, 0.0) if kind == "accuracy" else ((kind,), float(share))
    return [where | {"name": "accuracy", "what": each, "share": at} for each in kinds]


def _kept(rows: Sequence[Row], model: str, what: str) -> dict[int, float]:
    """By seed: the part of its accuracy that a model keeps, mean over tables and shares."""
    found: dict[tuple[int, str], dict[float, float]] = {}
    for row in rows:
        if row["name"] == "accuracy" and row["what"] == what and row["study"].endswith(model):
            found.setdefault((row["seed"], row["study"]), {})[row["share"]] = row["value"]
    parts: dict[int, list[float]] = {}
    for (seed, _), by_share in found.items():
        whole = by_share.get(0.0, 0.0)
        kept = [value / whole for share, value in by_share.items() if share > 0 and whole > 0]
        parts.setdefault(seed, []).extend(kept)
    return {seed: fmean(kept) for seed, kept in parts.items() if kept}
