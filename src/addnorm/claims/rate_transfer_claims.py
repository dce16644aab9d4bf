"""Base class of the claims that a scale keeps the best learning rate over width and depth."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, ChartSpec
from addnorm.claims.experiments import TINY
from addnorm.claims.progress_scale import select_fields
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    PROGRESS_DEFINITION,
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
RATES = [5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]
FIRST_SEED = 600
STUDIES = ("standard", "mup", "completep")
TEXT: dict[str, Any] = {
    "task": "lm", "tokenizer": "char", "score": 0, "monitor_every": 0, "max_length": 64,
    "dropout": 0.0, "schedule": "linear", "weight_decay": 0.0, "heads": 4, "tied": False,
}  # fmt: skip


class RateTransferClaim(ComparisonClaim):
    """The best learning rate of a small model, used for a deeper and wider one."""

    wiring: ClassVar[str]
    group_fields = ("study", "arm", "depth")
    pilot = "None: nothing was run before the rule was written."
    experiment = (
        "Language models on characters of the demo corpus, small (4 layers of width 32) and large "
        "(16 layers of width 64), are trained at seven learning rates a factor of 2 apart, with a "
        "warm-up of a tenth of the steps, as standard, muP and CompleteP models with the small one "
        "as base. The loss of progress is the progress of the large model at its own best rate "
        "minus that at the best rate of the small one; best is the highest mean over seeds. "
        f"{PROGRESS_DEFINITION} The reference is the small standard model."
    )
    rule = (
        f"With CompleteP the large model loses less than {NEGLIGIBLE_PROGRESS:g} of progress at "
        "the best rate of the small one, and less than the standard model, seed by seed. muP is "
        "reported and not judged: it has no rule for the depth."
    )
    finding = (
        "at the best rate of the small model the large one loses {completep: progress lost} of "
        "progress with CompleteP, {standard minus completep: progress lost} less than without"
    )
    measured_on = "characters of text, 4 layers of width 32 to 16 of width 64, 150 steps"
    reach = "not tested: longer training, larger models and other widths and depths"
    chart = ChartSpec(
        name="progress", x="lr", y="progress", group_by=("study", "depth"), log_x=True
    )

    def is_reference(self, row: Row) -> bool:
        depths = {4, 1}
        return bool(row["study"] == "standard" and row["depth"] in depths)

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        (depth, dim), _ = SIZES[budget]
        scales = {
            "standard": None,
            "mup": f"mup(base_dim={dim})",
            "completep": f"completep(base_dim={dim}, base_depth={depth})",
        }
        return {name: self._comparison(budget, scales[name]) for name in STUDIES}

    def _comparison(self, budget: Budget, scale: str | None) -> Comparison:
        effort: dict[Budget, dict[str, Any]] = {
            "smoke": TINY,
            "standard": {"batch_tokens": 1024, "steps": 150, "seeds": 4, "first_seed": FIRST_SEED},
            "full": {"batch_tokens": 4096, "steps": 2000, "seeds": 5},
        }
        spec = dict(effort[budget])
        spec.pop("dim", None)
        steps = spec["steps"]
        spec |= {"valid_every": steps, "save_every": steps, "heads": 2 if budget == "smoke" else 4}
        grids = [
            {
                "wiring": [self.wiring],
                "depth": [depth],
                "lr": [1e-3] if budget == "smoke" else RATES,
                "warmup": [max(1, steps // 10)],
                "axes": {"dim": [dim]},
            }
            for depth, dim in SIZES[budget]
        ]
        own = {} if scale is None else {"scale": scale}
        if budget == "smoke":
            spec["max_length"] = 32
        return parse_comparison(TEXT | spec | own | {"grids": grids})

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        lost = {study: lost_progress(rows, study) for study in STUDIES}
        complete = lost["completep"]
        return [
            Check(
                "completep: progress lost", estimate_over_seeds(complete), high=NEGLIGIBLE_PROGRESS
            ),
            Check(
                "standard minus completep: progress lost",
                paired_difference(lost["standard"], complete),
                low=0.0,
            ),
            Check("mup: progress lost", estimate_over_seeds(lost["mup"])),
        ]


def lost_progress(rows: Sequence[Row], study: str) -> dict[int, float]:
    """Return by seed what the best rate of the small model costs the large one."""
    own = [row for row in select_fields(rows, study=study) if row["name"] == "progress"]
    depths = sorted({row["depth"] for row in own})
    if len(depths) < 2:
        return {}
    small, large = (
        _values_by_rate([row for row in own if row["depth"] == depth])
        for depth in (depths[0], depths[-1])
    )
    used, best = (max(values, key=lambda rate: _mean(values[rate])) for values in (small, large))
    if used not in large:
        return {}
    return {seed: value - large[used][seed] for seed, value in large[best].items()}


def _values_by_rate(rows: Sequence[Row]) -> dict[float, dict[int, float]]:
    values: dict[float, dict[int, float]] = {}
    for row in rows:
        values.setdefault(row["lr"], {})[row["seed"]] = row["value"]
    return values


def _mean(values: Mapping[int, float]) -> float:
    return sum(values.values()) / len(values)
