"""Slopes of sizes over width or depth, with intervals and a verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

CONFIDENCE_LEVEL = 0.95
TOLERANCE = 0.2
"""Largest slope, in either direction, that counts as flat."""
Verdict = Literal["flat", "grows", "falls", "unclear", "zero", "not finite"]


@dataclass(frozen=True)
class Slope:
    """Slope of log2 of a size over log2 of the width or depth, by least squares."""

    value: float
    low: float
    high: float
    """Bounds of the 95 % interval by Student's t over all points; infinite with two points."""

    @classmethod
    def fit(cls, points: Sequence[tuple[float, float]]) -> "Slope | None":
        """Return the slope of (size of the model, value) points; None if it is not defined.

        >>> Slope.fit([(1, 1.0), (2, 2.0), (4, 4.0)])
        Slope(value=1.0, low=1.0, high=1.0)
        """
        if len({size for size, _ in points}) < 2 or any(
            not 0 < value < math.inf for _, value in points
        ):
            return None
        x, y = np.log2(np.array(points, dtype=np.float64)).T
        x = x - x.mean()
        spread = float((x**2).sum())
        value = float((x * y).sum()) / spread
        free = len(points) - 2
        if free < 1:
            return cls(value, -math.inf, math.inf)
        residuals = y - y.mean() - value * x
        error = math.sqrt(max(float((residuals**2).sum()), 0.0) / free / spread)
        half = float(special.stdtrit(free, (1 + CONFIDENCE_LEVEL) / 2)) * error
        return cls(value, value - half, value + half)


def judge(points: Sequence[tuple[float, float]], tolerance: float = TOLERANCE) -> Verdict:
    """Return the verdict on a size: flat within the tolerance, or which way it goes.

    A slope beyond the tolerance whose interval contains 0 is unclear.

    >>> judge([(1, 1.0), (2, 1.01), (4, 0.99)]), judge([(1, 1.0), (2, 2.0), (4, 4.1)])
    ('flat', 'grows')
    """
    values = [value for _, value in points]
    if any(not math.isfinite(value) for value in values):
        return "not finite"
    if all(value == 0 for value in values):
        return "zero"
    slope = Slope.fit(points)
    if slope is None:
        return "unclear"
    if abs(slope.value) <= tolerance:
        return "flat"
    if slope.low <= 0 <= slope.high:
        return "unclear"
    return "grows" if slope.value > 0 else "falls"
