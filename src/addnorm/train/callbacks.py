"""Training callbacks."""

from collections.abc import Mapping
from typing import Any

from addnorm.core.callbacks import Callback
from addnorm.core.rows import Row
from addnorm.train.train_state import Outcome, TrainState


class TrainCallback(Callback):
    """Training callback. Override the hooks you need; the defaults do nothing.

    `addnorm.train.train` counts steps and calls all hooks except `on_epoch_end`. The estimators of
    `addnorm.tabular` count epochs and call only `on_epoch_end`. In distributed training the hooks
    run in the main process only.
    """

    def on_train_start(self, state: TrainState, summary: dict[str, Any]) -> None:
        """Run before the first step of this process.

        Args:
            state: the state to start from; `state.step` is greater than 0 when a run is resumed
            summary: the number of parameters, the device and the source of the schedule
        """

    def on_step_end(self, state: TrainState, loss: float) -> None:
        """Run after each optimizer step; `loss` is the mean training loss of that step."""

    def on_epoch_end(self, epoch: int, num_epochs: int, metrics: Mapping[str, float]) -> None:
        """Run after each epoch.

        Args:
            epoch: number of the epoch, from 1
            num_epochs: number of epochs if training is not stopped early
            metrics: `epoch`, `train`, `lr`, `seconds` and, with a validation set, `valid`
        """

    def on_rows(self, rows: list[Row]) -> None:
        """Run after rows are appended to `rows.jsonl`."""

    def on_train_end(self, outcome: Outcome) -> None:
        """Run after the last checkpoint is written; not called if training raises."""
