"""Temperature scaling of probabilities, and reliability diagrams."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from addnorm.core.errors import UserError
from addnorm.tabular.inspection.charts import save_chart

MIN_CALIBRATION_ROWS = 100
"""Smallest number of validation rows to fit a temperature to."""
LOG_TEMPERATURES = (-3.0, 3.0)
"""Range of the logarithm of a temperature."""
CROSS_FITTED_LOG_TEMPERATURES = (-0.7, 1.1)
"""The same for small tables, about 0.5 to 3: rows that happen to be easy must not decide alone."""


def fit_temperature(
    logits: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    *,
    bounds: tuple[float, float] = LOG_TEMPERATURES,
) -> float:
    """Return the temperature T that maximizes the likelihood of softmax(logits / T).

    A temperature changes the probabilities, but no predicted class. Guo, Pleiss, Sun and
    Weinberger, On Calibration of Modern Neural Networks, 2017, arXiv 1706.04599.

    Args:
        logits: (rows, classes) outputs on validation rows
        targets: (rows) class codes
        weights: (rows) positive weights
        bounds: range of log(T)
    """

    def negative_log_likelihood(log_temperature: float) -> float:
        log_probabilities = log_softmax(logits / np.exp(log_temperature), axis=1)
        correct = log_probabilities[np.arange(len(targets)), targets]
        return float(-(correct * weights).sum() / weights.sum())

    best = minimize_scalar(negative_log_likelihood, bounds=bounds, method="bounded").x
    return float(np.exp(best))


@dataclass(frozen=True)
class Reliability:
    """Observed frequency of an outcome for each bin of its predicted probability."""

    predicted: np.ndarray
    """(bins) mean predicted probability."""
    observed: np.ndarray
    """(bins) fraction of rows with the outcome."""
    rows: np.ndarray
    """(bins) number of rows."""

    def __str__(self) -> str:
        bins = zip(self.predicted, self.observed, self.rows, strict=True)
        lines = (f"  {p:.3f} predicted, {o:.3f} observed, {n:,} rows" for p, o, n in bins)
        return "\n".join(["reliability", *lines])

    @classmethod
    def from_predictions(
        cls, probability: np.ndarray, outcome: np.ndarray, *, bins: int = 10
    ) -> "Reliability":
        """Group predictions into bins of equal width; empty bins are dropped.

        Args:
            probability: (rows) predicted probabilities
            outcome: (rows) booleans, whether the outcome occurred
            bins: number of bins
        """
        if len(probability) != len(outcome) or not len(outcome):
            raise UserError(
                f"expected one outcome for each probability, got {len(probability)} probabilities "
                f"and {len(outcome)} outcomes"
            )
        if not isinstance(bins, int | np.integer) or isinstance(bins, bool) or bins < 1:
            raise UserError(f"bins: expected an integer >= 1, got {bins!r}")
        if not ((probability >= 0) & (probability <= 1)).all():
            raise UserError("probability: expected values between 0 and 1, got others")
        index = np.minimum((probability * bins).astype(int), bins - 1)
        rows = np.bincount(index, minlength=bins)
        occupied = rows > 0
        predicted, observed = (
            np.bincount(index, each, bins)[occupied] / rows[occupied]
            for each in (probability, outcome)
        )
        return cls(predicted, observed, rows[occupied])

    @classmethod
    def from_labels(
        cls, probabilities: np.ndarray, y: np.ndarray, classes: np.ndarray, *, bins: int = 10
    ) -> "Reliability":
        """Compare probabilities, (rows, classes), with labels, (rows).

        The outcome is the second of two classes, or that the most probable of more is right.
        """
        if not any(each in classes.tolist() for each in y.tolist()):
            raise UserError(
                f"y: expected labels among {classes.tolist()}, got none of them; check the type of "
                "the labels"
            )
        if len(classes) == 2:
            return cls.from_predictions(probabilities[:, 1], y == classes[1], bins=bins)
        is_correct = classes[probabilities.argmax(1)] == y
        return cls.from_predictions(probabilities.max(1), is_correct, bins=bins)

    @property
    def error(self) -> float:
        """Expected calibration error: mean absolute difference, weighted by rows."""
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.rows))

    def chart(self) -> Any:
        """Return the reliability diagram; the bins of a calibrated model lie on the diagonal."""
        import altair as alt

        table = [
            {"predicted": float(predicted), "observed": float(observed), "rows": int(rows)}
            for predicted, observed, rows in zip(
                self.predicted, self.observed, self.rows, strict=True
            )
        ]
        unit = alt.Scale(domain=[0, 1])
        points = alt.Chart({"values": table}).encode(
            x=alt.X("predicted:Q", scale=unit, title="predicted probability"),
            y=alt.Y("observed:Q", scale=unit, title="observed frequency"),
            tooltip=["predicted:Q", "observed:Q", "rows:Q"],
        )
        corners = {"values": [{"predicted": each, "observed": each} for each in (0, 1)]}
        diagonal = (
            alt.Chart(corners)
            .mark_line(strokeDash=[4, 4], color="gray")
            .encode(x=alt.X("predicted:Q", scale=unit), y=alt.Y("observed:Q", scale=unit))
        )
        layers = alt.layer(diagonal, points.mark_line(), points.mark_circle(size=60))
        return layers.properties(width=320, height=320)

    def save(self, path: str | Path) -> Path:
        """Write the diagram to a .svg, .png, .html or .json file."""
        return save_chart(self.chart(), path)
