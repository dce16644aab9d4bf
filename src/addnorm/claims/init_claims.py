"""Claims about untrained models: one measurement per seed, no training."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from addnorm.claims.checks import estimate_over_seeds
from addnorm.claims.claim import BUDGETS, Budget, Claim, ClaimWorkspace
from addnorm.claims.progress import ProgressTimer
from addnorm.comparison.statistics import Estimate
from addnorm.core.rows import Row
from addnorm.core.seeds import derive_seed
from addnorm.stacks import Encoder

BudgetSettings = Mapping[str, Any]


class InitClaim(Claim):
    """A claim whose numbers come from models at initialization."""

    method = "at the start"
    budgets: ClassVar[Mapping[Budget, BudgetSettings]]
    """By budget: `seeds`, optionally `first_seed`, and the settings that `measure` reads."""

    @abstractmethod
    def measure(self, settings: BudgetSettings) -> Iterable[Row]:
        """Yield the rows of one seed; torch is seeded already.

        settings: the settings of the budget, and `seed`.
        """

    def settings(self, budget: Budget) -> dict[str, Any]:
        return dict(self.budgets[budget])

    def cost(self, budget: Budget) -> str:
        return f"no training, {self.budgets[budget]['seeds']} seeds"

    def rows(self, budget: Budget, workspace: ClaimWorkspace) -> list[Row]:
        settings = self.budgets[budget]
        first, count = settings.get("first_seed", 0), settings["seeds"]
        timer = ProgressTimer(workspace.callback.on_message, total=count, unit="seeds")
        rows: list[Row] = []
        with torch.random.fork_rng():
            for number, seed in enumerate(range(first, first + count)):
                timer.update(number)
                reseed(seed)
                measured = self.measure({**settings, "seed": seed})
                rows += [{**row, "seed": seed} for row in measured]
        return rows


def reseed(seed: int) -> None:
    """Seed torch. Call it before each arm and depth, so that they see the same random draws."""
    torch.manual_seed(derive_seed(seed, "claim"))


def make_budget_table(**table: Any) -> dict[Budget, BudgetSettings]:
    """Return the settings of each budget from one table.

    A tuple holds one value per budget (smoke, standard, full); other values apply to all budgets.

    >>> make_budget_table(seeds=(2, 8, 16), lr=1e-4)["standard"]
    {'seeds': 8, 'lr': 0.0001}
    """
    return {
        budget: {
            name: entry[number] if isinstance(entry, tuple) else entry
            for name, entry in table.items()
        }
        for number, budget in enumerate(BUDGETS)
    }


def select_rows(rows: Iterable[Row], name: str, **fields: Any) -> list[Row]:
    """Return the rows with a name and these field values."""
    return [
        row
        for row in rows
        if row["name"] == name and all(row.get(key) == value for key, value in fields.items())
    ]


def compute_per_seed(
    rows: Sequence[Row], statistic: Callable[[list[Row]], float]
) -> dict[int, float]:
    """Apply a statistic to the rows of each seed; return the values by seed."""
    seeds = sorted({row["seed"] for row in rows})
    return {seed: statistic([row for row in rows if row["seed"] == seed]) for seed in seeds}


def estimate_per_seed(
    rows: Sequence[Row], statistic: Callable[[list[Row]], float]
) -> Estimate | None:
    """Apply a statistic to the rows of each seed; return the mean with its interval."""
    return estimate_over_seeds(compute_per_seed(rows, statistic))


def make_slope_statistic(
    x: str, *, log_x: bool = False, log_y: bool = False
) -> Callable[[list[Row]], float]:
    """Return a statistic: the least-squares slope of the values over a field.

    The slope is NaN if the field has fewer than two distinct values.

    >>> make_slope_statistic("depth", log_x=True, log_y=True)(
    ...     [{"depth": d, "value": d**-0.5} for d in (2, 8, 32)]
    ... )
    -0.5
    """

    def fit_slope(rows: list[Row]) -> float:
        if len({row[x] for row in rows}) < 2 or (log_y and any(row["value"] <= 0 for row in rows)):
            return math.nan
        xs = [math.log(row[x]) if log_x else row[x] for row in rows]
        ys = [math.log(row["value"]) if log_y else row["value"] for row in rows]
        from scipy import stats  # slow to import, also for `addnorm list`

        return round(float(stats.linregress(xs, ys).slope), 12)

    return fit_slope


def max_value(rows: list[Row]) -> float:
    """Return the largest value of rows."""
    return max(row["value"] for row in rows)


def min_value(rows: list[Row]) -> float:
    """Return the smallest value of rows."""
    return min(row["value"] for row in rows)


def make_encoder(wiring: str, depth: int, dim: int, **options: Any) -> Encoder:
    """Return an untrained encoder with heads of 16 features."""
    return Encoder(dim=dim, depth=depth, heads=max(1, dim // 16), wiring=wiring, **options)


def make_row(name: str, value: float | Tensor, **fields: Any) -> Row:
    """Return a row with its value rounded to six digits, which keeps stored rows small."""
    return {"name": name, "value": float(f"{float(value):.6g}"), **fields}
