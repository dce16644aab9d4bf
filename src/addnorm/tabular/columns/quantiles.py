"""Numbers put on the scale of a normal distribution, and back."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

KNOTS = 513
"""Points of a curve at most."""
EDGE = 2.0**-52
"""The smallest share: beside a huge weight others would have none, and a score without end."""
LEAST = 0.05
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
    def of(cls, x: np.ndarray, weights: np.ndarray) -> "Quantiles":
        """From finite values with positive weights; without any, everything is 0."""
        if not len(x):
            x, weights = np.zeros(1), np.ones(1)
        values, inverse = np.unique(x, return_inverse=True)
        mass = np.bincount(inverse, weights, len(values))
        share = (np.cumsum(mass) - mass / 2) / mass.sum()
        z = ndtri(share.clip(EDGE, 1 - EDGE))
        mean = np.average(z, weights=mass)
        deviation = np.sqrt(np.average((z - mean) ** 2, weights=mass))
        z = (z - mean) / max(deviation, LEAST)
        if len(values) > KNOTS:
            wanted = np.linspace(share[0], share[-1], KNOTS)
            kept = np.unique(np.searchsorted(share, wanted).clip(0, len(values) - 1))
            kept = np.union1d(kept, [0, len(values) - 1])
            values, z = values[kept], z[kept]
        return cls(values, z)

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """Scores of values; NaN stays."""
        return np.interp(x, self.values, self.scores)

    def back(self, scores: np.ndarray) -> np.ndarray:
        """Values of scores."""
        return np.interp(scores, self.scores, self.values)

    def to_plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"values": self.values.tolist(), "scores": self.scores.tolist()}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Quantiles":
        """From what `to_plain` made."""
        return cls(np.array(plain["values"], float), np.array(plain["scores"], float))
