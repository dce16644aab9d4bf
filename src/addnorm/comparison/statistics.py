"""Means with confidence intervals over seeds, and how many seeds show a difference."""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

CONFIDENCE_LEVEL = 0.95
POWER = 0.8
"""Probability with which a detectable difference is found."""
NUM_QUANTILES = 1000
MAX_SEEDS = 1000
"""Largest number of seeds that `seeds_to_detect` considers."""


def sequential_level(looks: int) -> float:
    """Return the confidence level after data were added `looks` times because of the results.

    level = 1 - 0.05 / 2 ** (looks + 1)

    Each look is another chance to be wrong. With these levels the chances of all looks add up to
    less than 0.05, however many there are.
    """
    return 1 - (1 - CONFIDENCE_LEVEL) / 2 ** (looks + 1)


@dataclass(frozen=True)
class Estimate:
    """A mean with its confidence interval by Student's t, of 95 % unless said otherwise.

    half = t((1 + level) / 2, n - 1) * s / sqrt(n)

    s: standard deviation of the n values, with n - 1 in the denominator
    """

    mean: float
    half: float | None
    """Half width of the interval; None for a single value."""
    count: int

    @classmethod
    def from_values(
        cls, values: Sequence[float], *, level: float = CONFIDENCE_LEVEL
    ) -> "Estimate | None":
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
        quantile = float(special.stdtrit(count - 1, (1 + level) / 2))
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


def paired_difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], *, level: float = CONFIDENCE_LEVEL
) -> Estimate | None:
    """Return the mean of ours minus theirs over common seeds; variation by seed cancels."""
    shared = sorted(ours.keys() & theirs.keys())
    return Estimate.from_values([ours[seed] - theirs[seed] for seed in shared], level=level)


def simultaneous_half_width(
    arms: Sequence[Mapping[int, float]], *, level: float = CONFIDENCE_LEVEL
) -> float | None:
    """Return the half width of intervals that hold for all pairs of arms together.

    half = t(1 - (1 - level) / (k * (k - 1)), (k - 1) * (n - 1)) * s * sqrt(2 / n)

    s: standard deviation of the losses around the means of their arm and seed; k: number of arms;
    n: number of common seeds. The correction for the pairs is Bonferroni's. The arms share s,
    because a few seeds tell too little about the noise of each pair.

    Args:
        arms: losses of each arm by seed
        level: confidence level

    Returns:
        the half width; None for fewer than two arms or two common seeds
    """
    if len(arms) < 2:
        return None
    shared = sorted(set.intersection(*(set(each) for each in arms)))
    if len(shared) < 2:
        return None
    losses = np.array([[each[seed] for seed in shared] for each in arms])
    residuals = losses - losses.mean(1, keepdims=True) - losses.mean(0) + losses.mean()
    freedom, num_pairs = (len(arms) - 1) * (len(shared) - 1), len(arms) * (len(arms) - 1) // 2
    deviation = math.sqrt(float((residuals**2).sum()) / freedom)
    quantile = float(special.stdtrit(freedom, 1 - (1 - level) / (2 * num_pairs)))
    return quantile * deviation * math.sqrt(2 / len(shared))


def detectable_difference(
    deviation: float, count: int, *, level: float = CONFIDENCE_LEVEL
) -> float:
    """Return the smallest true difference that a paired t-test finds with 80 % probability.

    difference = c * s / sqrt(n)

    c: noncentrality at which |t| exceeds its critical value with probability 0.8
    s: standard deviation of the differences; n: number of seeds, at least 2

    >>> [round(detectable_difference(0.01, n), 3) for n in (3, 5, 10)]
    [0.033, 0.017, 0.01]
    """
    from scipy import optimize  # slow to import, also for commands that compute no intervals

    freedom = count - 1
    critical = float(special.stdtrit(freedom, (1 + level) / 2))

    # Given the estimated deviation, t is normal; average over quantiles of that deviation. (SciPy's
    # noncentral t gives NaN for some arguments.)
    quantiles = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    critical_sums = critical * np.sqrt(special.chdtri(freedom, 1 - quantiles) / freedom)

    def missing_power(noncentrality: float) -> float:
        above = special.ndtr(noncentrality - critical_sums)
        below = special.ndtr(-critical_sums - noncentrality)
        return float(np.mean(above + below)) - POWER

    # At the upper end |t| almost surely exceeds its critical value, also with two seeds.
    noncentrality = float(optimize.brentq(missing_power, 0.0, 10 * critical + 10))
    return noncentrality * deviation / math.sqrt(count)


def seeds_to_detect(
    difference: float, deviation: float, *, level: float = CONFIDENCE_LEVEL
) -> int | None:
    """Return the number of seeds that makes a difference detectable; None if more than 1,000.

    >>> seeds_to_detect(0.02, 0.01), seeds_to_detect(0.0, 0.01)
    (5, None)
    """
    counts = range(2, MAX_SEEDS + 1)
    first = bisect.bisect_left(
        counts, True, key=lambda n: detectable_difference(deviation, n, level=level) <= difference
    )
    return counts[first] if first < len(counts) else None
