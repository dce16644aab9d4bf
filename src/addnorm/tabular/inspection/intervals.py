"""Prediction intervals from the errors on validation rows (split conformal prediction)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from addnorm.core.errors import UserError
from addnorm.models.tabular import TableBatch, TableModel
from addnorm.tabular.training.loop import WeightedBatch
from addnorm.tabular.training.number_targets import LogTarget, NumberTarget
from addnorm.tabular.training.prediction import predict
from addnorm.tabular.training.regression_targets import QuantileTarget

MAX_SCORES = 2000
"""Largest number of validation rows whose errors are kept."""


@dataclass(frozen=True)
class IntervalScores:
    """Errors of a regressor on rows that it was not trained on.

    A score is |y - prediction|, or max(low - y, y - high) for the outermost predicted quantiles.
    With n scores, the interval widened by the ceil((n + 1) * coverage)-th smallest score contains a
    new value with at least this probability, if new rows are drawn like the validation rows: Vovk,
    Gammerman and Shafer, Algorithmic Learning in a Random World, 2005; for quantiles Romano,
    Patterson and Candès, Conformalized Quantile Regression, 2019, arXiv 1905.03222.

    Here the validation rows also choose the epoch, so the true coverage is slightly lower.
    """

    scores: np.ndarray
    """(rows) sorted scores."""

    @classmethod
    def from_predictions(cls, predictions: np.ndarray, y: np.ndarray) -> "IntervalScores":
        """Compute the scores of validation rows.

        Args:
            predictions: (rows) numbers, or (rows, quantiles)
            y: (rows) values
        """
        predictions = predictions.reshape(len(y), -1)
        scores = np.maximum(predictions[:, 0] - y, y - predictions[:, -1])
        return cls(np.sort(scores[:MAX_SCORES]))

    @classmethod
    def from_networks(
        cls,
        networks: Sequence[TableModel],
        folds: Sequence[WeightedBatch],
        reference: TableBatch,
        target: NumberTarget | LogTarget | QuantileTarget,
    ) -> "IntervalScores":
        """Compute the scores of the validation rows of each network, a sample of them if many."""
        predictions, values = [], []
        for network, fold in zip(networks, folds, strict=True):
            rows = fold.subsample(max(1, MAX_SCORES // len(networks)))
            outputs = predict(network, rows.cells, reference).double().cpu().numpy()
            predictions.append(target.decode(outputs))
            values.append(target.to_values(rows.targets.cpu().numpy()))
        return cls.from_predictions(np.concatenate(predictions), np.concatenate(values))

    @classmethod
    def from_json(cls, scores: Sequence[float] | None) -> "IntervalScores | None":
        """Rebuild the scores from a list."""
        return None if scores is None else cls(np.array(scores, dtype=np.float64))

    def interval(self, predictions: np.ndarray, coverage: Any) -> np.ndarray:
        """Return the bounds of each row, (rows, 2).

        Args:
            predictions: (rows) numbers, or (rows, quantiles)
            coverage: probability that a value lies within the bounds

        Raises:
            UserError: if the coverage is no probability, or too large for the number of scores
        """
        if not isinstance(coverage, float | np.floating) or not 0 < coverage < 1:
            raise UserError(f"coverage: expected a probability such as 0.9, got {coverage!r}")
        rank = int(np.ceil((len(self.scores) + 1) * coverage))
        if rank > len(self.scores):
            raise UserError(
                f"coverage: expected at most {len(self.scores) / (len(self.scores) + 1):.3g} with "
                f"{len(self.scores)} validation rows, got {coverage!r}; hold out more rows, or use "
                "bagging"
            )
        margin = self.scores[rank - 1]
        predictions = predictions.reshape(len(predictions), -1)
        low, high = predictions[:, 0] - margin, predictions[:, -1] + margin
        # A negative margin narrows quantiles that are too wide; bounds must not cross.
        middle = (low + high) / 2
        return np.stack([np.minimum(low, middle), np.maximum(high, middle)], 1)
