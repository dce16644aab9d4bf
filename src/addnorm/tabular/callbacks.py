"""Progress display of a fit: a progress bar on a terminal, log lines elsewhere."""

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from addnorm.train.callbacks import TrainCallback

EPOCHS_PER_LINE = 10
"""Epochs between two lines when standard error is not a terminal."""


class FitProgress(TrainCallback):
    """Shows epoch, losses and remaining time of a fit on standard error."""

    def __init__(self, max_seconds: float | None = None) -> None:
        self.max_seconds = max_seconds
        self.console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self.bar = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task_id = self.bar.add_task("", total=None)
        self.bar.start()

    def on_epoch_end(self, epoch: int, num_epochs: int, metrics: Mapping[str, float]) -> None:
        valid = f", held out {metrics['valid']:.4f}" if "valid" in metrics else ""
        losses = f"loss {metrics['train']:.4f}{valid}"
        self.bar.update(self.task_id, completed=epoch, total=num_epochs, description=losses)
        is_line = epoch % EPOCHS_PER_LINE == 1 or epoch == num_epochs
        if not self.console.is_terminal and is_line:
            remaining = metrics["seconds"] / epoch * (num_epochs - epoch)
            if self.max_seconds is not None:
                remaining = min(remaining, max(0.0, self.max_seconds - metrics["seconds"]))
            self.console.print(
                f"addnorm: epoch {epoch}/{num_epochs}: {losses}, {remaining:.0f} s left at most"
            )

    def close(self) -> None:
        self.bar.stop()


class MonitoredFit(TrainCallback):
    """Passes every epoch to a function, which may raise to end the fit, and to another callback."""

    def __init__(
        self, monitor: Callable[[Mapping[str, float]], None], callback: TrainCallback
    ) -> None:
        self.monitor, self.callback = monitor, callback

    def on_epoch_end(self, epoch: int, num_epochs: int, metrics: Mapping[str, float]) -> None:
        self.callback.on_epoch_end(epoch, num_epochs, metrics)
        self.monitor(metrics)

    def close(self) -> None:
        self.callback.close()


def make_fit_callback(
    *,
    verbose: bool | int,
    max_seconds: float | None = None,
    monitor: Callable[[Mapping[str, float]], None] | None = None,
) -> TrainCallback:
    """Return the callback of a fit.

    Args:
        verbose: whether to show progress
        max_seconds: time limit, for the display
        monitor: gets the metrics of every epoch; see `MonitoredFit`
    """
    callback = FitProgress(max_seconds) if verbose else TrainCallback()
    return callback if monitor is None else MonitoredFit(monitor, callback)
