"""Base class of the claims that a scale keeps the best learning rate over width and depth."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, ChartSpec
from addnorm.claims.experiments import TINY
from addnorm.claims.progress_scale import best_setting_values, select_fields
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    PROGRESS_DEFINITION,
    TRAINED_THRESHOLD,
    ComparisonClaim,
)
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.rows import Row

SIZES: dict[Budget, tuple[tuple[int, int], tuple[int, int]]] = {
    "smoke": ((1, 8), (2, 16)),
    "standard": ((4, 32), (16, 64)),
    "full": ((4, 64), (32, 256)),
}
"""Depth and width of the small and of the large model."""
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
FIRST_SEED = 600
STUDIES = ("standard", "mup", "completep")
TEXT: dict[str, Any] = {
    "task": "lm", "tokenizer": "char", "score": 0, "monitor_every": 0, "max_length": 32,
    "dropout": 0.0, "schedule": "linear", "weight_decay": 0.0, "heads": 4, "tied": False,
}  # fmt: skip
AT_SMALL_RATE = "completep minus standard, at the best rate of the small model"


class RateTransferClaim(ComparisonClaim):
    """The best learning rate of a small model, used for a deeper and wider one."""

    wiring: ClassVar[str]
    rates: ClassVar[Sequence[float]] = RATES
    """Learning rates of the standard and full budgets."""
    group_fields = ("study", "arm", "depth")
    pilot = (
        "ten cells of 20 to 60 steps of Pre-LN with seed 90, to measure the time. The rates were "
        "chosen from an earlier measurement with another implementation on another text (2 to 16 "
        "layers of width 32, 100 steps, 2 seeds); there CompleteP kept the rate of Pre-LN, and "
        "Post-LN of 8 layers or more did not train at any rate. A first rule, never run, compared "
        "the losses of progress of CompleteP and of the standard model. It was replaced because a "
        "large model that trains at no rate loses nothing."
    )
    experiment = (
        "Language models on characters of the demo corpus, small (4 layers of width 32) and large "
        "(16 layers of width 64), are trained for 100 steps of 256 tokens at six learning rates a "
        "factor of 2 apart, with a warm-up of a tenth of the steps. The large one is a standard, a "
        "muP or a CompleteP model with the small one as base. At the base size the three are one "
        "model, which is trained once. The loss of progress is the progress of the large model at "
        "its own best rate minus that at the best rate of the small one; best is the highest mean "
        f"over seeds. {PROGRESS_DEFINITION} The reference is the small model."
    )
    rule = (
        "With CompleteP the large model trains at its best rate (progress above "
        f"{TRAINED_THRESHOLD:g}), loses less than {NEGLIGIBLE_PROGRESS:g} of progress at the best "
        "rate of the small one, and makes more progress there than the standard model, seed by "
        "seed. muP is reported and not judged: it has no rule for the depth."
    )
    finding = (
        "at the best rate of the small model the large one loses {completep: progress lost} of "
        "progress with CompleteP, {standard: progress lost} as a standard model and "
        "{mup: progress lost} with muP; there CompleteP makes {" + AT_SMALL_RATE + "} more "
        "progress than the standard model"
    )
    measured_on = "characters of text, 4 layers of width 32 to 16 of width 64, 100 steps"
    reach = "not tested: longer training, larger models and other widths and depths"
    chart = ChartSpec(
        name="progress", x="lr", y="progress", group_by=("study", "depth"), log_x=True
    )

    def is_reference(self, row: Row) -> bool:
        small = {depth for (depth, _), _ in SIZES.values()}
        return bool(row["study"] == "standard" and row["depth"] in small)

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        small, large = SIZES[budget]
        depth, dim = small
        scales = {
            "mup": f"mup(base_dim={dim})",
            "completep": f"completep(base_dim={dim}, base_depth={depth})",
        }
        standard = self._comparison(budget, [small, large])
        scaled = {
            study: self._comparison(budget, [large], scale=scale) for study, scale in scales.items()
        }
        return {"standard": standard, **scaled}

    def _comparison(
        self, budget: Budget, sizes: Sequence[tuple[int, int]], **keys: str
    ) -> Comparison:
        effort: dict[Budget, dict[str, Any]] = {
            "smoke": TINY,
            "standard": {"batch_tokens": 256, "steps": 100, "seeds": 4, "first_seed": FIRST_SEED},
            "full": {"batch_tokens": 4096, "steps": 2000, "seeds": 5, "max_length": 64},
        }
        spec = dict(effort[budget])
        spec.pop("dim", None)
        steps = spec["steps"]
        spec |= {"valid_every": steps, "save_every": steps, "heads": 2 if budget == "smoke" else 4}
        grids = [
            {
                "wiring": [self.wiring],
                "depth": [depth],
                "lr": [1e-3] if budget == "smoke" else list(self.rates),
                "warmup": [max(1, steps // 10)],
                "axes": {"dim": [dim]},
            }
            for depth, dim in sizes
        ]
        return parse_comparison(TEXT | spec | keys | {"grids": grids})

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        depths = {row["depth"] for row in rows}
        shallow, deep = min(depths, default=0), max(depths, default=0)
        rate = _best_rate(_values_by_rate(rows, study="standard", depth=shallow))
        large = {study: _values_by_rate(rows, study=study, depth=deep) for study in STUDIES}
        at_rate = {study: values.get(rate, {}) for study, values in large.items()}
        lost = {study: _lost_progress(values, rate) for study, values in large.items()}
        trained = best_setting_values(rows, study="completep", depth=deep)
        return [
            Check(
                "completep: progress at its best rate",
                estimate_over_seeds(trained),
                low=TRAINED_THRESHOLD,
            ),
            Check(
                "completep: progress lost",
                estimate_over_seeds(lost["completep"]),
                high=NEGLIGIBLE_PROGRESS,
            ),
            Check(
                AT_SMALL_RATE,
                paired_difference(at_rate["completep"], at_rate["standard"]),
                low=0.0,
            ),
            Check("standard: progress lost", estimate_over_seeds(lost["standard"])),
            Check("mup: progress lost", estimate_over_seeds(lost["mup"])),
        ]


def _lost_progress(values: Mapping[float, Mapping[int, float]], rate: float) -> dict[int, float]:
    """Return by seed what this rate costs, compared with the best one."""
    if rate not in values:
        return {}
    return {seed: value - values[rate][seed] for seed, value in values[_best_rate(values)].items()}


def _best_rate(values: Mapping[float, Mapping[int, float]]) -> float:
    return max(values, key=lambda rate: fmean(values[rate].values()), default=0.0)


def _values_by_rate(rows: Sequence[Row], **fields: Any) -> dict[float, dict[int, float]]:
    values: dict[float, dict[int, float]] = {}
    for row in select_fields(rows, name="progress", **fields):
        values.setdefault(row["lr"], {})[row["seed"]] = row["value"]
    return values
