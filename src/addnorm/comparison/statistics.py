"""Means with their uncertainty over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

CONFIDENCE_LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval by Student's t; no interval from a single value.

    half = t(0.975, n - 1) * s / sqrt(n)

    s: standard deviation of the n values, with n - 1 in the denominator
    """

    mean: float
    half: float | None
    """Half of the interval; None where there is one value only."""
    count: int

    @classmethod
    def from_values(cls, values: Sequence[float]) -> "Estimate | None":
        """The estimate from values; None from none.

        >>> Estimate.of([1.0, 3.0]).told()
        '2.000 ± 12.706'
        """
        if not values:
            return None
        count, mean = len(values), math.fsum(values) / len(values)
        if count == 1:
            return cls(mean, None, 1)
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
        quantile = float(stats.t.ppf((1 + CONFIDENCE_LEVEL) / 2, count - 1))
        return cls(mean, quantile * spread / math.sqrt(count), count)

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside of the interval."""
        return self.half is not None and abs(self.mean) > self.half

    def format(self, digits: int = 3) -> str:
        """In a table: mean and half of the interval.

        >>> Estimate(2.0, 0.5, 3).told(), Estimate(2.0, None, 1).told()
        ('2.000 ± 0.500', '2.000')
        """
        return f"{self.mean:.{digits}f}" + (
            "" if self.half is None else f" ± {self.half:.{digits}f}"
        )


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Ours minus theirs over the seeds that both have: what the seeds share cancels."""
    shared = sorted(ours.keys() & theirs.keys())
    return Estimate.from_values([ours[seed] - theirs[seed] for seed in shared])
