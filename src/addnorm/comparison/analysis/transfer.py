"""Transfer: does the best learning rate of a small model stay the best of larger ones?"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from addnorm.comparison.analysis.summary import EndedCell
from addnorm.comparison.grid import OWN_SCHEDULE, Arm, Cell
from addnorm.comparison.statistics import Estimate

WIDTH_KEY = "dim"
UNFINISHED = ("cut", "waiting")
"""States of cells without a final loss, for reasons other than their learning rate."""


@dataclass(frozen=True)
class SizeCurve:
    """Losses of one arm at one size over learning rates."""

    depth: int
    dim: int | None
    """Width, if it is an axis."""
    losses: tuple[tuple[float, Estimate], ...]
    """Learning rate and mean final loss over seeds, in the order of the rates. A rate at which a
    seed did not end with a finite loss is left out."""
    failed: tuple[float, ...] = ()
    """Rates that are left out."""
    trained: bool = True
    """Whether a cell of this size trained; among those that are stuck, the best means little."""

    @property
    def name(self) -> str:
        """Depth and width as text."""
        return f"depth {self.depth}" + (f", dim {self.dim}" if self.dim is not None else "")

    @property
    def best(self) -> tuple[float, Estimate] | None:
        """The learning rate with the lowest mean loss, and that loss; None without any."""
        return min(self.losses, key=lambda each: each[1].mean, default=None)

    @property
    def vertex(self) -> float | None:
        """Best learning rate between those of the grid: vertex of a parabola in its logarithm.

        The parabola goes through the best rate and its neighbors; None at an end of the grid.
        """
        rates = [rate for rate, _ in self.losses]
        if self.best is None:
            return None
        index = rates.index(self.best[0])
        if not 0 < index < len(rates) - 1:
            return None
        (x0, y0), (x1, y1), (x2, y2) = (
            (math.log2(rate), loss.mean) for rate, loss in self.losses[index - 1 : index + 2]
        )
        left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
        if right <= left:
            return None
        # The derivative of the parabola is `left` and `right` in the middles of the two intervals.
        middles = (x0 + x1) / 2, (x1 + x2) / 2
        at = middles[0] - left * (middles[1] - middles[0]) / (right - left)
        return float(2**at)

    def loss_at(self, rate: float) -> Estimate | None:
        """Return the loss at a learning rate; None if it failed."""
        return next((loss for each, loss in self.losses if each == rate), None)


@dataclass(frozen=True)
class TransferResult:
    """One arm at several sizes, the smallest first."""

    arm: str
    curves: tuple[SizeCurve, ...]
    rates: tuple[float, ...]
    """All learning rates that were tried."""

    @property
    def base(self) -> SizeCurve:
        """The smallest size."""
        return self.curves[0]

    def costs(self) -> list[tuple[SizeCurve, float]]:
        """Return what the best rate of the smallest size costs at each other one.

        It is the loss at that rate minus the loss at the best rate; infinite if it fails there.
        """
        if self.base.best is None:
            return []
        rate = self.base.best[0]
        costs = []
        for curve in self.curves[1:]:
            at, best = curve.loss_at(rate), curve.best
            costs.append(
                (curve, math.inf if at is None or best is None else at.mean - best[1].mean)
            )
        return costs

    def moved(self) -> list[SizeCurve]:
        """Return the sizes whose best rate is not that of the smallest."""
        rate = None if self.base.best is None else self.base.best[0]
        return [each for each in self.curves[1:] if each.best is None or each.best[0] != rate]

    def sentence(self) -> str:
        """Return the answer in one sentence."""
        if self.base.best is None:
            return f"{self.arm}: no learning rate trains {self.base.name}."
        if len(self.curves) < 2:
            return f"{self.arm}: one size only; there is nothing to transfer to."
        rate = f"{self.base.best[0]:g}"
        moved, costs = self.moved(), [cost for _, cost in self.costs()]
        worst = max(costs)
        price = "it fails there" if math.isinf(worst) else f"it costs at most {worst:+.3f} in loss"
        count = len(self.curves) - 1
        start = f"{self.arm}: the best learning rate of {self.base.name}, {rate},"
        if not moved:
            return f"{start} stays the best of all {count} larger sizes."
        changes = ", ".join(
            f"{'none trains' if each.best is None else f'{each.best[0]:g}'} at {each.name}"
            for each in moved
        )
        return (
            f"{start} is not the best of {len(moved)} of {count} larger sizes ({changes}); {price}."
        )

    def warning(self) -> str:
        """Return sentences on sizes that did not train, or are best at an end of the grid."""
        stuck = [each.name for each in self.curves if not each.trained]
        sentences = []
        if stuck:
            where = self._join(stuck, "any size")
            sentences.append(
                f"{self.arm}: no learning rate trains at {where}, so that the best one there says "
                "little; use more steps."
            )
        at_ends = [
            each.name
            for each in self.curves
            if each.best is not None
            and each.best[0] in (min(self.rates), max(self.rates))
            and len(self.rates) > 1
        ]
        if at_ends:
            sentences.append(
                f"{self.arm}: a better rate may lie beyond those that were tried, at "
                f"{self._join(at_ends, 'every size')}."
            )
        return " ".join(sentences)

    def _join(self, names: list[str], if_all: str) -> str:
        return "; ".join(names) if len(names) < len(self.curves) else if_all

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return {
            "arm": self.arm,
            "answer": self.sentence(),
            "warning": self.warning(),
            "stays_best": self.base.best is not None
            and not self.moved()
            and all(curve.trained for curve in self.curves),
            "sizes": [
                {
                    "depth": curve.depth,
                    "dim": curve.dim,
                    "best_lr": None if curve.best is None else curve.best[0],
                    "best_lr_interpolated": curve.vertex,
                    "losses": {f"{rate:g}": loss.mean for rate, loss in curve.losses},
                }
                for curve in self.curves
            ],
        }


def analyze_transfer(cells: Iterable[EndedCell]) -> list[TransferResult]:
    """Return the result of each arm and warm-up; arms that differ only in their width are one.

    Args:
        cells: the cells of a comparison; those that did not end are left out
    """
    groups: dict[str, dict[tuple[int, int | None], dict[float, list[float]]]] = {}
    trained = set[tuple[str, int, int | None]]()
    ended = [each for each in cells if each.state not in UNFINISHED]
    several = len({each.cell.warmup for each in ended}) > 1
    for each in ended:
        arm, dim = _split_width(each.cell)
        if several:
            warmup = OWN_SCHEDULE if each.cell.warmup is None else each.cell.warmup
            arm = f"{arm} warmup={warmup}"
        sizes = groups.setdefault(arm, {})
        rates = sizes.setdefault((each.cell.depth, dim), {})
        value = each.loss if each.state in ("trained", "stuck") else math.nan
        rates.setdefault(each.cell.lr, []).append(value)
        if each.state == "trained":
            trained.add((arm, each.cell.depth, dim))
    results = []
    for arm, sizes in groups.items():
        curves = [
            replace(_make_curve(depth, dim, rates), trained=(arm, depth, dim) in trained)
            for (depth, dim), rates in sorted(sizes.items(), key=lambda item: _order(item[0]))
        ]
        tried = sorted({rate for rates in sizes.values() for rate in rates})
        results.append(TransferResult(arm, tuple(curves), tuple(tried)))
    return results


def _make_curve(depth: int, dim: int | None, rates: dict[float, list[float]]) -> SizeCurve:
    losses, failed = [], []
    for rate, values in sorted(rates.items()):
        estimate = Estimate.from_values(values) if all(map(math.isfinite, values)) else None
        if estimate is None:
            failed.append(rate)
        else:
            losses.append((rate, estimate))
    return SizeCurve(depth, dim, tuple(losses), tuple(failed))


def _split_width(cell: Cell) -> tuple[str, int | None]:
    extras = dict(cell.arm.extras)
    dim = extras.pop(WIDTH_KEY, None)
    arm = Arm(cell.arm.wiring, cell.arm.norm, cell.arm.own, tuple(extras.items()))
    return arm.name, None if dim is None else int(dim)


def _order(size: tuple[int, int | None]) -> tuple[int, int, int]:
    """Return the order of sizes: by weights in the layers, which grow with depth * dim ** 2."""
    depth, dim = size
    return depth * (dim or 1) ** 2, depth, dim or 0
