"""Weighted quantile transform from values to standard normal scores, and back."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

MAX_KNOTS = 513
"""Largest number of interpolation points."""
MIN_FRACTION = 2.0**-52
"""Smallest quantile: next to a huge weight, other values would get an infinite score."""
MIN_DEVIATION = 0.05
"""Smallest standard deviation of the scores to divide by, for the same reason."""


@dataclass(frozen=True)
class Quantiles:
    """Increasing curve from values to normal scores, linear between knots and constant beyond them.

    q(v) = (weight of values below v + half of the weight at v) / total weight
    score(v) = (ndtri(q(v)) - mean) / deviation

    mean, deviation: those of ndtri(q) over the training rows

    Equal values share one score, so repeating a row is the same as doubling its weight.
    """

    values: np.ndarray
    """(knots), increasing."""
    scores: np.ndarray
    """(knots), increasing."""

    @classmethod
    def from_samples(cls, x: np.ndarray, weights: np.ndarray) -> "Quantiles":
        """Fit to finite values with positive weights; without any, every score is 0."""
        if not len(x):
            x, weights = np.zeros(1), np.ones(1)
        values, inverse = np.unique(x, return_inverse=True)
        mass = np.bincount(inverse, weights, len(values))
        quantiles = (np.cumsum(mass) - mass / 2) / mass.sum()
        z = ndtri(quantiles.clip(MIN_FRACTION, 1 - MIN_FRACTION))
        mean = np.average(z, weights=mass)
        deviation = np.sqrt(np.average((z - mean) ** 2, weights=mass))
        z = (z - mean) / max(deviation, MIN_DEVIATION)
        if len(values) > MAX_KNOTS:
            spaced = np.linspace(quantiles[0], quantiles[-1], MAX_KNOTS)
            knots = np.unique(np.searchsorted(quantiles, spaced).clip(0, len(values) - 1))
            knots = np.union1d(knots, [0, len(values) - 1])
            values, z = values[knots], z[knots]
        return cls(values, z)

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Return the scores of values; NaN stays NaN."""
        return np.interp(x, self.values, self.scores)

    def inverse_transform(self, scores: np.ndarray) -> np.ndarray:
        """Return the values of scores."""
        return np.interp(scores, self.scores, self.values)

    def to_json(self) -> dict[str, Any]:
        """Return the curve as JSON-serializable data."""
        return {"values": self.values.tolist(), "scores": self.scores.tolist()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Quantiles":
        """Rebuild a curve from the output of `to_json`."""
        return cls(np.array(data["values"], float), np.array(data["scores"], float))
