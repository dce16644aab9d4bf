"""Detection of spikes and divergence in a sequence of losses."""

import math
from collections import deque
from statistics import median
from typing import Any, Literal

from addnorm.core.errors import UserError
from addnorm.sublayers.base import check_positive_int

LossStatus = Literal["fine", "spike", "diverged"]

MIN_LOSSES = 32
"""Losses to collect before a loss can be classified as a spike."""
MIN_RELATIVE_JUMP = 0.05
"""Smallest relative jump above the median that counts as a spike, however smooth the curve."""


class SpikeDetector:
    """Online detector that classifies each loss by the losses before it.

    spike:    loss > m + max(sigmas * 1.4826 * d, 0.05 * |m|, 0.001) and loss > h + (h - m) / 2
    diverged: loss is not finite, or was above start + max(|start|, 1) `window` times in a row

    m, d: median and median absolute deviation of the last `window` losses without spikes
    h: their maximum. Batches differ in difficulty, and a loss within the range of earlier hard
        batches is not a spike
    start: median of the first 32 losses, or of `window` if smaller; before that every finite loss
        is fine
    1.4826 * d: estimate of the standard deviation for normally distributed losses

    A quarter of `window` spikes in a row, at least 4, form a new level, and the statistics start
    over from them. The same losses get the same result, also across `to_dict` and `from_dict`.

    >>> detector = SpikeDetector(window=8)
    >>> [detector.update(loss) for loss in (4, 4, 3, 3, 3, 3, 2, 2, 30, 2, float("nan"))][-3:]
    ['spike', 'fine', 'diverged']
    """

    def __init__(self, *, window: int = 128, sigmas: float = 6.0) -> None:
        check_positive_int("window", window, min_value=4)
        if isinstance(sigmas, bool) or not isinstance(sigmas, int | float) or not sigmas > 0:
            raise UserError(f"sigmas: expected a positive number, got {sigmas!r}")
        self.window, self.sigmas = window, float(sigmas)
        self._calm: deque[float] = deque(maxlen=window)
        self._start: float | None = None
        self._spikes: list[float] = []
        self._high = 0

    def update(self, loss: float) -> LossStatus:
        """Classify the next loss and add it to the statistics."""
        loss = float(loss)
        if not math.isfinite(loss) or self._has_diverged(loss):
            return "diverged"
        if self._is_spike(loss):
            self._spikes.append(loss)
            if len(self._spikes) < max(4, self.window // 4):
                return "spike"
            self._calm = deque(self._spikes, maxlen=self.window)
        else:
            self._calm.append(loss)
        self._spikes = []
        if self._start is None and len(self._calm) == self._min_losses:
            self._start = median(self._calm)
        return "fine"

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON-compatible values."""
        return {
            "window": self.window,
            "sigmas": self.sigmas,
            "calm": list(self._calm),
            "start": self._start,
            "spikes": list(self._spikes),
            "high": self._high,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> "SpikeDetector":
        """Restore a detector from the result of `to_dict`."""
        detector = cls(window=state["window"], sigmas=state["sigmas"])
        detector._calm.extend(state["calm"])
        detector._start, detector._high = state["start"], state["high"]
        detector._spikes = list(state["spikes"])
        return detector

    @property
    def _min_losses(self) -> int:
        return min(MIN_LOSSES, self.window)

    def _has_diverged(self, loss: float) -> bool:
        is_high = self._start is not None and loss > self._start + max(abs(self._start), 1.0)
        self._high = self._high + 1 if is_high else 0
        return self._high >= self.window

    def _is_spike(self, loss: float) -> bool:
        if len(self._calm) < self._min_losses:
            return False
        center = median(self._calm)
        deviation = median(abs(each - center) for each in self._calm)
        high = max(self._calm)
        jump = max(self.sigmas * 1.4826 * deviation, MIN_RELATIVE_JUMP * abs(center), 1e-3)
        return loss > max(center + jump, high + (high - center) / 2)
