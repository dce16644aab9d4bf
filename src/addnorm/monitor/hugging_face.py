"""Callback for the `Trainer` of transformers.

    from addnorm.monitor.hugging_face import MonitorCallback
    Trainer(..., callbacks=[MonitorCallback(every=50)])

The Trainer clips gradients before any event. Gradient norms are multiplied back if the Trainer logs
its own norm at the same step; rows that could not be, although gradients were clipped, have the
field `clipped`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from addnorm.measure.sites import unwrap_model
from addnorm.monitor.monitor import Monitor
from addnorm.monitor.sinks import MetricsSink

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as problem:
    raise ImportError(
        f"addnorm.monitor.hugging_face requires transformers and accelerate ({problem}); run "
        "pip install 'transformers[torch]'"
    ) from None

DEFAULT_FOLDER = "monitor"


class MonitorCallback(TrainerCallback, ExportableState):
    """Monitor of the model that a `Trainer` trains.

    Args:
        every: measure step 1 and every update divisible by this number
        folder: folder of `rows.jsonl`; `monitor` inside the Trainer's `output_dir` by default
        example: inputs that are measured, as for `addnorm.Monitor`; by default those of the first
            step, which differ after a checkpoint
        trainer: the one whose loggers (`report_to`) also get a summary of each look; a callback
            does not know its Trainer, so pass it here and use `trainer.add_callback`
        sinks: further sinks, as for `addnorm.Monitor`
        doctor: whether to audit the model at the first step and log the findings
    """

    def __init__(
        self,
        every: int = 50,
        folder: str | Path | None = None,
        *,
        example: Any = None,
        trainer: Any = None,
        sinks: Sequence[Any] = (),
        doctor: bool = True,
    ) -> None:
        Monitor.check_interval(every)
        self.every, self.folder, self.trainer = every, folder, trainer
        self.example = example
        self.sinks, self.doctor = sinks, doctor
        self.monitor: Monitor | None = None
        """The monitor, while and after the Trainer trains."""
        self.monitor_state: dict[str, Any] | None = None
        self._logged_step = -1

    def state(self) -> dict[str, Any]:
        """Return arguments and state of the monitor for a checkpoint of the Trainer."""
        state = self.monitor_state if self.monitor is None else self.monitor.state_dict()
        folder = None if self.folder is None else str(self.folder)
        args = {"every": self.every, "folder": folder, "doctor": self.doctor}
        return {"args": args, "attributes": {"monitor_state": state}}

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Start the monitor, after a checkpoint where it stood."""
        if self.monitor is not None:
            if self.monitor.is_open and self.monitor.model is unwrap_model(model):
                self.monitor.warn("callbacks: expected this MonitorCallback once, got it twice")
                return
            self.monitor.close()
        self._logged_step = -1
        sinks = list(self.sinks) if isinstance(self.sinks, list | tuple) else [self.sinks]
        if self.trainer is not None:
            sinks.append(MetricsSink(lambda values, _step: self.trainer.log(values)))
        self.monitor = Monitor(
            model,
            kwargs.get("optimizer"),
            every=self.every,
            folder=self.folder or Path(args.output_dir) / DEFAULT_FOLDER,
            example=self.example,
            sinks=sinks,
            doctor=self.doctor,
        )
        saved = self.monitor_state or _find_saved_state(state)
        if saved is not None:
            self.monitor.load_state_dict(saved)
        self.monitor.set_step(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the last look, if the Trainer has not logged since."""
        if self.monitor is not None:
            self._finish_look(args)
            self.monitor.set_step(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Take loss and gradient norm from the log of the Trainer."""
        if self.monitor is None or not self.monitor.is_open or not logs:
            return
        if "eval_loss" in logs:
            self.monitor.log("loss", logs["eval_loss"], split="valid")
        if "loss" in logs and state.global_step != self._logged_step:
            self._logged_step = state.global_step  # a callback that is listed twice is called twice
            self._finish_look(args, logs.get("grad_norm"), logs["loss"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write pending rows and remove all hooks."""
        if self.monitor is not None and self.monitor.is_open:
            self._finish_look(args)
            self.monitor.close()

    def _finish_look(self, args: Any, grad_norm: Any = None, loss: Any = None) -> None:
        """Undo the clipping of the pending look as far as it is known, and write it."""
        if self.monitor is not None:
            self.monitor.correct_clipping(args.max_grad_norm or None, grad_norm)
            self.monitor.step(loss)


def _find_saved_state(state: Any) -> dict[str, Any] | None:
    """Return the state of the monitor in the checkpoint that training resumes from."""
    saved = (getattr(state, "stateful_callbacks", None) or {}).get(MonitorCallback.__name__)
    saved = saved[0] if isinstance(saved, list) else saved
    return (saved or {}).get("attributes", {}).get("monitor_state")
