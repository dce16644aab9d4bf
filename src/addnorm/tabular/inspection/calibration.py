"""Probabilities that mean what they say: one temperature, and the plot that shows it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from addnorm.core.errors import UserError
from addnorm.tabular.inspection.charts import save_chart

MIN_CALIBRATION_ROWS = 100
"""Rows from which on a temperature is worth fitting."""


def fit_temperature(logits: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> float:
    """The T that makes softmax(logits / T) most likely.

    Guo, Pleiss, Sun and Weinberger, On Calibration of Modern Neural Networks, 2017, arXiv
    1706.04599. It changes no prediction, only how sure it is.
    """

    def surprise(log_t: float) -> float:
        said = log_softmax(logits / np.exp(log_t), axis=1)[np.arange(len(targets)), targets]
        return float(-(said * weights).sum() / weights.sum())

    return float(np.exp(minimize_scalar(surprise, bounds=(-3, 3), method="bounded").x))


@dataclass(frozen=True)
class Reliability:
    """How often what was said with a probability came true."""

    said: np.ndarray
    """(bins), mean probability."""
    true: np.ndarray
    """(bins), share that came true."""
    rows: np.ndarray
    """(bins), how many."""

    @classmethod
    def from_predictions(
        cls, probability: np.ndarray, true: np.ndarray, *, bins: int = 10
    ) -> "Reliability":
        """Bins of equal width; empty ones are left out."""
        if len(probability) != len(true) or not len(true):
            raise UserError(f"got {len(probability)} probabilities and {len(true)} outcomes")
        if not isinstance(bins, int | np.integer) or isinstance(bins, bool) or bins < 1:
            raise UserError(f"bins is a whole number from 1, got {bins!r}")
        if not ((probability >= 0) & (probability <= 1)).all():
            raise UserError("probabilities lie between 0 and 1, got others")
        place = np.minimum((probability * bins).astype(int), bins - 1)
        rows = np.bincount(place, minlength=bins)
        some = rows > 0
        said, came = (np.bincount(place, each, bins)[some] for each in (probability, true))
        return cls(said / rows[some], came / rows[some], rows[some])

    @property
    def error(self) -> float:
        """Expected calibration error: the mean distance, rows counted alike."""
        return float(np.average(np.abs(self.said - self.true), weights=self.rows))

    def chart(self) -> Any:
        """The plot: on the diagonal, probabilities mean what they say."""
        import altair as alt

        table = [
            {"said": float(said), "came true": float(true), "rows": int(rows)}
            for said, true, rows in zip(self.said, self.true, self.rows, strict=True)
        ]
        share = alt.Scale(domain=[0, 1])
        points = alt.Chart({"values": table}).encode(
            x=alt.X("said:Q", scale=share, title="probability that was said"),
            y=alt.Y("came true:Q", scale=share, title="share that came true"),
            tooltip=["said:Q", "came true:Q", "rows:Q"],
        )
        ends = {"values": [{"said": 0, "came true": 0}, {"said": 1, "came true": 1}]}
        even = alt.Chart(ends).mark_line(strokeDash=[4, 4], color="gray")
        even = even.encode(x=alt.X("said:Q", scale=share), y=alt.Y("came true:Q", scale=share))
        layers = alt.layer(even, points.mark_line(), points.mark_circle(size=60))
        return layers.properties(width=320, height=320)

    def save(self, path: str | Path) -> Path:
        """Write the plot; the name's ending tells the format: svg, png, html or json."""
        return save_chart(self.chart(), path)
