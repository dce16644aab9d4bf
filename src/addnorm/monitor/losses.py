"""Losses of a run: averaged over the batches of an update, recorded, and judged for spikes."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from addnorm.core.rows import thinned_interval
from addnorm.measure.spikes import SpikeDetector
from addnorm.monitor.row_store import RowStore

MAX_DENSE_LOSSES = 20_000
"""Losses that are written step by step; later ones thin out as the measured steps do."""


class LossRecord:
    """Losses since the last update, and the detector of spikes.

    Args:
        store: store of the rows
        warn: function that shows a warning
    """

    def __init__(self, store: RowStore, warn: Callable[[str], None]) -> None:
        self.detector = SpikeDetector()
        self._store, self._warn = store, warn
        self._losses: list[float] = []

    @property
    def is_pending(self) -> bool:
        """Whether there are losses that no update has followed."""
        return bool(self._losses)

    def add(self, loss: Any) -> None:
        """Add the loss of a batch, a number or a tensor with one element."""
        try:
            self._losses.append(float(loss.detach() if isinstance(loss, Tensor) else loss))
        except (TypeError, ValueError, RuntimeError):
            shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
            self._warn(
                f"loss: expected a number, got {type(loss).__name__}{shape}; it is not recorded"
            )

    def judge(self, step: int) -> bool:
        """Write the mean loss of a step; return whether it is a spike or not finite."""
        if not self._losses:
            return False
        loss = math.fsum(self._losses) / len(self._losses)
        self._losses = []
        row = {"step": step, "value": loss, "site": None}
        status = self.detector.update(loss)
        if status != "fine" or step % thinned_interval(1, step, full=MAX_DENSE_LOSSES) == 0:
            self._store.add({**row, "name": "loss"})
        if status == "spike" or (status != "fine" and not self._store.has("diverged")):
            self._store.add({**row, "name": status})
        return status != "fine"
