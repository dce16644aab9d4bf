"""Claims about a model at its start: measured seed by seed, without any training."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from scipy import stats
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
    """A claim whose numbers come from models that were never trained."""

    method = "at the start"
    budgets: ClassVar[Mapping[Budget, BudgetSettings]]
    """`seeds`, `first_seed` (0 without), and whatever sizes `measure` wants, for each budget."""

    @abstractmethod
    def measure(self, settings: BudgetSettings) -> Iterable[Row]:
        """The rows of one seed, which is set already. at: the sizes of the budget, and `seed`."""

    def settings(self, budget: Budget) -> dict[str, Any]:
        """The sizes."""
        return dict(self.budgets[budget])

    def cost(self, budget: Budget) -> str:
        """No training; so many seeds."""
        return f"no training, {self.budgets[budget]['seeds']} seeds"

    def rows(self, budget: Budget, workspace: ClaimWorkspace) -> list[Row]:
        """Measure with each seed; torch's generator goes on afterwards as if nothing had been."""
        at = self.budgets[budget]
        made: list[Row] = []
        with torch.random.fork_rng():
            told = ProgressTimer(workspace.callback.on_message, total=at["seeds"], unit="seeds")
            first = at.get("first_seed", 0)
            for number, seed in enumerate(range(first, first + at["seeds"])):
                told.update(number)
                reseed(seed)
                made += [{**row, "seed": seed} for row in self.measure({**at, "seed": seed})]
        return made


def reseed(seed: int) -> None:
    """Begin the draws of a seed again: called before every arm and depth, it pairs them."""
    torch.manual_seed(derive_seed(seed, "claim"))


def budget_table(**table: Any) -> dict[Budget, BudgetSettings]:
    """The sizes of each budget, from a table: a tuple has one for each, all else is the same.

    >>> sizes(seeds=(2, 8, 16), lr=1e-4)["standard"]
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
    """The rows of a name, whose other fields are these."""
    return [
        row
        for row in rows
        if row["name"] == name and all(row.get(key) == value for key, value in fields.items())
    ]


def compute_per_seed(
    rows: Sequence[Row], statistic: Callable[[list[Row]], float]
) -> dict[int, float]:
    """A number from the rows of each seed."""
    seeds = sorted({row["seed"] for row in rows})
    return {seed: statistic([row for row in rows if row["seed"] == seed]) for seed in seeds}


def estimate_per_seed(
    rows: Sequence[Row], statistic: Callable[[list[Row]], float]
) -> Estimate | None:
    """The estimate of a number over seeds, each from its own rows."""
    return estimate_over_seeds(compute_per_seed(rows, statistic))


def slope(x: str, *, log_x: bool = False, log_y: bool = False) -> Callable[[list[Row]], float]:
    """The slope of the values along a field, by least squares; NaN from fewer than two places.

    >>> slope("depth", log_x=True, log_y=True)(
    ...     [{"depth": d, "value": d**-0.5} for d in (2, 8, 32)]
    ... )
    -0.5
    """

    def of(rows: list[Row]) -> float:
        if len({row[x] for row in rows}) < 2 or (log_y and any(row["value"] <= 0 for row in rows)):
            return math.nan
        xs = [math.log(row[x]) if log_x else row[x] for row in rows]
        ys = [math.log(row["value"]) if log_y else row["value"] for row in rows]
        return round(float(stats.linregress(xs, ys).slope), 12)

    return of


def max_value(rows: list[Row]) -> float:
    """The largest value."""
    return max(row["value"] for row in rows)


def min_value(rows: list[Row]) -> float:
    """The smallest value."""
    return min(row["value"] for row in rows)


def make_encoder(wiring: str, depth: int, dim: int, **options: Any) -> Encoder:
    """An encoder as one would train it, at its start."""
    return Encoder(dim=dim, depth=depth, heads=max(1, dim // 16), wiring=wiring, **options)


def make_row(name: str, value: float | Tensor, **fields: Any) -> Row:
    """A row with six digits of its value: more is rounding, and rows are kept."""
    return {"name": name, "value": float(f"{float(value):.6g}"), **fields}
