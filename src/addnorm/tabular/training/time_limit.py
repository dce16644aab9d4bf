"""Time limit of training, which includes the predictions of the validation rows after it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

FORWARD_SHARE = 0.5
"""Estimated time of a prediction relative to a training step on the same rows."""
PREDICTIONS_AFTER_TRAINING = 2
"""Predictions of the validation rows after the last step: validation and calibration."""


class TimeLimit:
    """Clock of a training run with an optional limit."""

    def __init__(self, max_seconds: float | None, *, validation_steps: float) -> None:
        """Start the clock.

        Args:
            max_seconds: limit, or None
            validation_steps: training batches that have as many rows as the validation rows
        """
        self.max_seconds = max_seconds
        self.validation_steps = validation_steps
        self.started = time.monotonic()
        self.steps = 0
        self.prediction_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def fraction(self) -> float:
        """Return the fraction of the time for training that has passed, at most 1; 0 without limit.

        The time of the predictions that follow is that of the last validation. Before the first
        one, it is estimated from the training steps.
        """
        if self.max_seconds is None:
            return 0.0
        seconds, expected = self.seconds, self.prediction_seconds
        if expected is None:
            expected = FORWARD_SHARE * self.validation_steps * seconds / max(1, self.steps)
        left_for_training = self.max_seconds - PREDICTIONS_AFTER_TRAINING * expected
        return 1.0 if seconds >= left_for_training else seconds / left_for_training

    @contextmanager
    def validation(self) -> Iterator[None]:
        """Measure the time of a prediction of the validation rows."""
        before = self.seconds
        yield
        self.prediction_seconds = self.seconds - before
