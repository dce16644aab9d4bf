"""Callback for the `Trainer` of Lightning 2.

    from addnorm.monitor.lightning import MonitorCallback
    L.Trainer(callbacks=[MonitorCallback(every=50)])

A `LightningModule` is seldom called itself; its `training_step` calls a module inside. The callback
measures the module that is called in the first step, the largest if there are several.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from addnorm.core.errors import MonitorWarning
from addnorm.monitor.forward_calls import CallObserver
from addnorm.monitor.monitor import Monitor
from addnorm.monitor.sinks import MetricsSink

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback  # type: ignore[assignment]
    except ImportError:
        raise ImportError(
            "addnorm.monitor.lightning requires lightning, which is not installed; run pip install "
            "lightning"
        ) from None

DEFAULT_FOLDER = "monitor"
CHECKPOINT_KEY = "addnorm_monitor"


class MonitorCallback(Callback):
    """Monitor of the module that a Lightning `Trainer` trains.

    Args:
        every: measure step 1 and every update divisible by this number
        folder: folder of `rows.jsonl`; `monitor` inside the Trainer's log folder by default
        module: module to measure; by default the largest that the first training step calls
        example: inputs that are measured, as for `addnorm.Monitor`; by default those of the first
            step
        log: whether the Trainer's loggers also get a summary of each look
        sinks: further sinks, as for `addnorm.Monitor`
        doctor: whether to audit the model at the first step and log the findings
    """

    def __init__(
        self,
        every: int = 50,
        folder: str | Path | None = None,
        *,
        module: nn.Module | None = None,
        example: Any = None,
        log: bool = True,
        sinks: Sequence[Any] = (),
        doctor: bool = True,
    ) -> None:
        super().__init__()
        Monitor.check_interval(every)
        self.every, self.folder, self.module = every, folder, module
        self.example = example
        self.log, self.sinks, self.doctor = log, sinks, doctor
        self.monitor: Monitor | None = None
        """The monitor, from the first update on."""
        self._saved_state: dict[str, Any] | None = None
        self._first_step = 0
        self._is_training, self._is_updating = False, False
        self._finished_batch: tuple[int, int] | None = None
        self._observers: list[CallObserver] = []

    # Lightning refuses two callbacks of one class that have a `state_dict`.

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the state of the monitor to a checkpoint."""
        if self.monitor is not None:
            checkpoint[CHECKPOINT_KEY] = self.monitor.state_dict()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until the monitor starts."""
        self._saved_state = checkpoint.get(CHECKPOINT_KEY)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Observe the calls of the modules until the first update."""
        if self._is_training:
            text = "callbacks: expected this MonitorCallback once, got it twice"
            warnings.warn(text, MonitorWarning, stacklevel=2)
            return
        self._close()
        self._is_training, self._is_updating, self._finished_batch = True, False, None
        self.monitor, self._first_step = None, trainer.global_step
        modules = [self.module] if self.module is not None else [pl_module, *pl_module.children()]
        self._observers = [
            CallObserver(module, examples=4, keep_calls=False)
            for module in modules
            if any(True for _ in module.parameters())
        ]
        for observer in self._observers:
            observer.attach()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Measure before an update; gradients are unscaled and not clipped yet."""
        if self._is_updating:
            return  # a further optimizer of the same batch
        if self.monitor is None:
            self.monitor = self._start(trainer, pl_module)
        self._is_updating = True
        self.monitor.before_update(optimizer=optimizer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Finish the measurement of an update, and judge the loss."""
        number = (trainer.current_epoch, batch_idx)
        if self.monitor is None or number == self._finished_batch:
            return
        self._finished_batch = number
        if self._is_updating:
            self._is_updating = False
            self.monitor.after_update()
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        # Lightning divides the loss by the number of accumulated batches.
        scale = trainer.accumulate_grad_batches
        self.monitor.step(loss * scale if isinstance(loss, torch.Tensor) else None)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the metric `val_loss`, if the module has one."""
        loss = trainer.callback_metrics.get("val_loss")
        if self.monitor is not None and loss is not None and not trainer.sanity_checking:
            self.monitor.log("loss", float(loss), split="valid")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write pending rows and remove all hooks."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Mark the run as interrupted."""
        self._close("interrupted")

    def _close(self, ending: str = "done") -> None:
        self._is_training = False
        for observer in self._observers:
            observer.detach()
        if self.monitor is not None:
            self.monitor.close(ending)

    def _start(self, trainer: Any, pl_module: Any) -> Monitor:
        """Return the monitor of the module that the first step called."""
        called = [observer for observer in self._observers if observer.example is not None]
        for observer in self._observers:
            observer.detach()
        chosen = max(called, key=lambda each: _count(each.target)) if called else None
        modules = [pl_module] if self.module is None else [self.module]
        sinks = list(self.sinks) if isinstance(self.sinks, list | tuple) else [self.sinks]
        if self.log:
            sinks += [_make_logger_sink(logger) for logger in trainer.loggers]
        monitor = Monitor(
            chosen.target if chosen is not None else modules[0],
            every=self.every,
            folder=self.folder
            or Path(trainer.log_dir or trainer.default_root_dir) / DEFAULT_FOLDER,
            example=chosen.example if self.example is None and chosen is not None else self.example,
            sinks=sinks,
            doctor=self.doctor,
        )
        if self._saved_state is not None:
            monitor.load_state_dict(self._saved_state)
        monitor.set_step(self._first_step)
        return monitor


def _make_logger_sink(logger: Any) -> MetricsSink:
    return MetricsSink(lambda values, step: logger.log_metrics(values, step=step))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
