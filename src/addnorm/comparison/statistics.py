"""Means with confidence intervals over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

CONFIDENCE_LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval by Student's t.

    half = t(0.975, n - 1) * s / sqrt(n)

    s: standard deviation of the n values, with n - 1 in the denominator
    """

    mean: float
    half: float | None
    """Half width of the interval; None for a single value."""
    count: int

    @classmethod
    def from_values(cls, values: Sequence[float]) -> "Estimate | None":
        """Return the estimate of values; None if there are none.

        >>> Estimate.from_values([1.0, 3.0]).format()
        '2.000 ± 12.706'
        """
        if not values:
            return None
        count, mean = len(values), math.fsum(values) / len(values)
        if count == 1:
            return cls(mean, None, 1)
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
        quantile = float(stats.t.ppf((1 + CONFIDENCE_LEVEL) / 2, count - 1))
        return cls(mean, quantile * deviation / math.sqrt(count), count)

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside the interval."""
        return self.half is not None and abs(self.mean) > self.half

    def format(self, digits: int = 3) -> str:
        """Return the mean and half width as text.

        >>> Estimate(2.0, 0.5, 3).format(), Estimate(2.0, None, 1).format()
        ('2.000 ± 0.500', '2.000')
        """
        half = "" if self.half is None else f" ± {self.half:.{digits}f}"
        return f"{self.mean:.{digits}f}{half}"


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Return the mean of ours minus theirs over common seeds; variation by seed cancels."""
    shared = sorted(ours.keys() & theirs.keys())
    return Estimate.from_values([ours[seed] - theirs[seed] for seed in shared])
