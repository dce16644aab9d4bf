"""Numbers put on the scale of a normal distribution, and back."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

MAX_KNOTS = 513
"""Points of a curve at most."""
MIN_FRACTION = 2.0**-52
"""The smallest share: beside a huge weight others would have none, and a score without end."""
MIN_DEVIATION = 0.05
"""The smallest deviation, for the same reason."""


@dataclass(frozen=True)
class Quantiles:
    """A rising curve from values to normal scores, straight between its knots, flat beyond them.

    score = (ndtri(share of the weight below, half of that at the value) - mean) / deviation

    Several rows of one value get one score, so that repeating rows and giving them weight are one.
    """

    values: np.ndarray
    """(knots), rising."""
    scores: np.ndarray
    """(knots), rising."""

    @classmethod
    def from_samples(cls, x: np.ndarray, weights: np.ndarray) -> "Quantiles":
        """From finite values with positive weights; without any, everything is 0."""
        if not len(x):
            x, weights = np.zeros(1), np.ones(1)
        values, inverse = np.unique(x, return_inverse=True)
        mass = np.bincount(inverse, weights, len(values))
        share = (np.cumsum(mass) - mass / 2) / mass.sum()
        z = ndtri(share.clip(MIN_FRACTION, 1 - MIN_FRACTION))
        mean = np.average(z, weights=mass)
        deviation = np.sqrt(np.average((z - mean) ** 2, weights=mass))
        z = (z - mean) / max(deviation, MIN_DEVIATION)
        if len(values) > MAX_KNOTS:
            wanted = np.linspace(share[0], share[-1], MAX_KNOTS)
            kept = np.unique(np.searchsorted(share, wanted).clip(0, len(values) - 1))
            kept = np.union1d(kept, [0, len(values) - 1])
            values, z = values[kept], z[kept]
        return cls(values, z)

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Scores of values; NaN stays."""
        return np.interp(x, self.values, self.scores)

    def inverse_transform(self, scores: np.ndarray) -> np.ndarray:
        """Values of scores."""
        return np.interp(scores, self.scores, self.values)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"values": self.values.tolist(), "scores": self.scores.tolist()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Quantiles":
        """From what `to_plain` made."""
        return cls(np.array(data["values"], float), np.array(data["scores"], float))
