"""Monitor of any model in any training loop: finds its sites once, then measures them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Self

from addnorm.core.errors import UserError
from addnorm.core.rows import Row
from addnorm.doctor.model_trace import to_call_arguments
from addnorm.doctor.report import Finding
from addnorm.doctor.trace.errors import describe_exception
from addnorm.measure.monitor import is_due
from addnorm.measure.sites import unwrap_model
from addnorm.measure.spikes import SpikeDetector
from addnorm.monitor.diagnosis.diagnose import diagnose_findings, diagnose_rows
from addnorm.monitor.diagnosis.sentence import Sentence
from addnorm.monitor.forward_calls import CallObserver, ForwardCall, cut_batch
from addnorm.monitor.losses import LossRecord
from addnorm.monitor.optimizer_hooks import (
    StepHooks,
    read_learning_rate,
    shares_parameters,
    unwrap_optimizers,
)
from addnorm.monitor.preparation import explain_unsupported
from addnorm.monitor.problems import Problems
from addnorm.monitor.row_store import RowStore
from addnorm.monitor.sinks import make_sinks
from addnorm.monitor.site_meter import SiteMeter
from addnorm.monitor.sites.planned_sites import is_sharded
from addnorm.monitor.sites.site_plan import Site
from addnorm.sublayers.base import check_positive_int

BURST_STEPS = 8
"""Steps that are measured after a loss spike or a non-finite value."""
MAX_NONFINITE_SEARCHES = 3
_OPEN: "WeakSet[Monitor]" = WeakSet()


class Monitor:
    """Monitor of a training run of any `nn.Module`.

    monitor = addnorm.Monitor(model, optimizer, every=50, folder="watch")
    with monitor:
        for batch in loader:
            loss = step(batch)      # forward, backward, clip, optimizer.step()
            monitor.step(loss)

    The residual sites are found once, by the doctor, on the inputs of the first call. At step 1 and
    every `every` optimizer steps, a separate forward pass of these inputs in evaluation mode
    measures the sites. Training is bit for bit the same as without a monitor. Problems of the
    monitor are warnings (`MonitorWarning`) and never stop the training.

    Args:
        model: any module; also inside DistributedDataParallel, sharded by `fully_shard`, compiled
        optimizer: optimizer of the model, or a list of those that make one update together; without
            one, call `before_update` and `after_update` around the update
        every: measure step 1 and every optimizer step divisible by this number; long runs thin out
        folder: folder of `rows.jsonl`, which `addnorm report` and `addnorm doctor` read
        example: arguments of the forward pass that is measured: a tensor, a tuple of positional or
            a dict of keyword inputs; by default those of the first training call
        sinks: further sinks: names (`tensorboard`, `wandb`, `mlflow`), functions of a list of rows,
            or objects with `write` and `close`
        doctor: whether to audit the model when its sites are found; see `findings`
        examples: number of examples of the first call that are measured
        keep_batch: whether to keep references to the inputs of the current step, so that a NaN can
            be traced to its operation
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        *,
        every: int = 50,
        folder: str | Path | None = None,
        example: Any = None,
        sinks: Sequence[Any] = (),
        doctor: bool = True,
        examples: int = 4,
        keep_batch: bool = True,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise UserError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
        self.check_interval(every)
        check_positive_int("examples", examples)
        self.model, self.every = unwrap_model(model), every
        if folder is not None and not isinstance(folder, str | Path):
            raise UserError(f"folder: expected a path, got {type(folder).__name__}")
        self.folder = None if folder is None else Path(folder)
        self._optimizers = unwrap_optimizers(optimizer)
        self._problems = Problems(self._turn_off)
        self._store = RowStore(make_sinks(sinks, self.folder), self._problems.warn)
        self._losses = LossRecord(self._store, self._problems.warn)
        self._observer = CallObserver(model, examples=examples, keep_calls=keep_batch)
        self._meter = SiteMeter(
            self.model, self._observer, optimizers=self._optimizers, audit=doctor,
            folder=self.folder, warn=self._problems.warn,
        )  # fmt: skip
        self._hooks: StepHooks | None = None
        self._is_off, self._is_open = False, False
        self._is_measured, self._is_manual = False, False
        self._step, self._judged_step = 0, 0
        self._burst_end, self._searches = 0, 0
        self._entered = 0
        self._look: list[Row] = []
        self._learning_rates: list[Row] = []
        self._open()
        if example is not None:
            self._use_example(example, examples)

    @staticmethod
    def check_interval(every: int) -> None:
        """Raise `UserError` unless `every` is a positive integer."""
        check_positive_int("every", every)

    # the training loop

    def __enter__(self) -> Self:
        self._entered += 1
        if not self._is_open:
            self._open()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._entered -= 1
        if not self._entered:
            self.close(ending="done" if error is None else "interrupted")

    def step(self, loss: Any = None) -> list[dict[str, Any]]:
        """Judge the loss after an update; return the rows of this step if it was measured.

        Without an optimizer, each call is a step, and gradients are measured as they are now. With
        gradient accumulation, losses since the last update are averaged.

        Args:
            loss: loss of the batch, a number or a tensor with one element
        """
        if not self._is_usable("step"):
            return []
        with self._problems.guard("the step of the monitor"):
            if not self._optimizers and not self._is_manual:
                self._before_update(updates=False)
                self._after_update()
            if loss is not None:
                self._losses.add(loss)
            if self._step == self._judged_step:
                return []  # a micro-batch, or a skipped update
            self._judged_step = self._step
            if self._losses.judge(self._step):
                self._start_burst(self._step)
            look, self._look = self._look, []
            if look:
                self._store.flush()
            return [dict(row) for row in look]
        return []

    def before_update(self, step: int | None = None, *, optimizer: Any = None) -> None:
        """Measure before an update, if the monitor has no optimizer; gradients must be final.

        Args:
            step: number of the step, from 1; by default the one after the last
            optimizer: optimizer whose learning rate is recorded
        """
        self._is_manual = True
        if self._is_usable("before_update"):
            if step is not None:
                self._step = step - 1
            self._before_update(rates=unwrap_optimizers(optimizer))

    def after_update(self) -> list[dict[str, Any]]:
        """Measure after the update that `before_update` announced; return the rows of the step."""
        if not self._is_usable("after_update"):
            return []
        self._after_update()
        return [dict(row) for row in self._look]

    def log(self, name: str, value: float, *, split: str = "train") -> None:
        """Add a row of your own at the current step, such as a validation loss.

        Args:
            name: name of the row
            value: the number
            split: train or valid
        """
        if not self._is_usable("log"):
            return
        self._store.add(
            {"step": self._step, "name": name, "value": float(value), "split": split, "site": None}
        )

    def set_step(self, step: int) -> None:
        """Set the number of updates so far, where a framework counts them."""
        if step != self._step:
            self._step = self._judged_step = step

    def correct_clipping(self, max_norm: float | None, norm: float | None) -> None:
        """Undo the clipping of the gradients in the rows of the last step, if it is known.

        Args:
            max_norm: norm that gradients were clipped to; None if they were not
            norm: norm of all gradients before clipping; without it, rows of clipped gradients get
                the field `clipped`
        """
        total = next((r["value"] for r in self._look if r["name"] == "gradient_norm"), math.nan)
        if max_norm is None or not total >= 0.999 * max_norm:
            return
        for row in self._look:
            if row["name"] == "gradient_norm" and isinstance(row, dict):
                if norm is None:
                    row["clipped"] = 1
                else:
                    row["value"] *= float(norm) / total

    # results

    @property
    def sites(self) -> tuple[Site, ...]:
        """The residual sites with path, kind and wiring; empty until the first step."""
        return self._meter.sites

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of the doctor; empty until the first step."""
        return self._meter.findings

    @property
    def notes(self) -> tuple[str, ...]:
        """What cannot be measured, one line each."""
        return tuple(dict.fromkeys([*self._meter.notes, *self._problems.texts]))

    @property
    def is_open(self) -> bool:
        """Whether it measures: from its creation to `close`, and inside `with` again."""
        return self._is_open

    def warn(self, text: str) -> None:
        """Show a warning once, and keep it in `notes`."""
        self._problems.warn(text)

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows measured so far: dicts with `name`, `step`, `site` and `value`.

        `site` is an index of `sites`, or None for the whole model. Rows of a site also have its
        `label`, `path`, `stack`, `layer` and `kind`.
        """
        return [dict(row) for row in self._store.rows]

    def diagnosis(self) -> list[Sentence]:
        """Return what the doctor and the rows show, as sentences with numbers and sites."""
        return [
            *diagnose_findings(self.findings),
            *diagnose_rows(self._store.rows, notes=self._meter.notes),
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the step and the state of the spike detector, for a checkpoint."""
        return {"step": self._step, "detector": self._losses.detector.to_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the step at which `state_dict` was called."""
        self._step = self._judged_step = int(state["step"])
        self._losses.detector = SpikeDetector.from_dict(state["detector"])

    def close(self, ending: str = "done") -> None:
        """Write pending rows and remove all hooks.

        Args:
            ending: how the run ended: done or interrupted
        """
        if not self._is_open:
            return
        self._is_open = False
        self._detach()
        if self._losses.is_pending and not self._step and not self._is_off:
            self._problems.warn(
                "optimizer: expected its step to be called, got losses without any; pass the "
                "optimizer that the training loop calls, or use before_update and after_update"
            )
        if self._step:
            row = {"step": self._step, "name": "ended", "value": self._step, "site": None}
            self._store.add({**row, "ending": ending})
        self._store.close()

    # one update

    def _before_update(
        self,
        gradient_scale: float | Tensor = 1.0,
        *,
        updates: bool = True,
        rates: Sequence[Optimizer] = (),
    ) -> None:
        self._is_measured = False
        if self._is_off:
            return
        with self._problems.guard("the measurement"):
            step = self._step + 1
            due = is_due(step, self.every)
            if not self._meter.prepare(step, is_due=due):
                return
            if not self._meter.has_finite_gradients():
                self._start_burst(step)
                self._searches += 1
                if self._searches <= MAX_NONFINITE_SEARCHES:
                    self._store.add(*self._meter.find_nonfinite(step))
            if due or step <= self._burst_end:
                self._is_measured = True
                self._learning_rates = read_learning_rate(step, rates or self._optimizers)
                self._meter.measure(step, gradient_scale, updates=updates)

    def _after_update(self) -> None:
        self._step += 1
        self._observer.step_calls = []
        if self._is_off or not self._is_measured:
            return
        self._is_measured = False
        with self._problems.guard("the measurement"):
            self._look = [*self._meter.finish(), *self._learning_rates]
            self._store.add(*self._look)

    def _start_burst(self, step: int) -> None:
        # Processes that share a model judge different losses, and must measure the same steps.
        if not is_sharded(self.model):
            self._burst_end = max(self._burst_end, step + BURST_STEPS)

    # state

    def _open(self) -> None:
        self._is_open, self._is_off = True, False
        for other in [each for each in _OPEN if each.model is self.model and each is not self]:
            other._supersede()
            self._problems.warn("model: an earlier monitor measured it; that one is off now")
        reason = explain_unsupported(self.model)
        if reason:
            self._is_off = True
            self._problems.warn(f"{reason}; this monitor is off, training continues")
            return
        _OPEN.add(self)
        self._observer.attach()
        if self._optimizers:
            if not shares_parameters(self._optimizers, self.model):
                self._problems.warn(
                    "optimizer: expected an optimizer of the model's parameters, got one that "
                    "updates none of them; its steps are counted, update ratios will be 0"
                )
            self._hooks = StepHooks(self._optimizers, self._before_update, self._after_update)

    def _detach(self) -> None:
        """Remove all hooks."""
        _OPEN.discard(self)
        self._observer.detach()
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None

    def _supersede(self) -> None:
        """Stop measuring, because another monitor measures the model now."""
        self._detach()
        self._turn_off()
        self._store.flush()

    def _use_example(self, example: Any, examples: int) -> None:
        """Find the sites with these arguments; with those of the first call if they are wrong."""
        if not isinstance(example, ForwardCall):
            args, kwargs = cut_batch(to_call_arguments(example), None)
            example = ForwardCall(args=args, kwargs=kwargs)
        if self._is_off:
            return
        self._observer.use(example)
        try:
            self._meter.find_sites(example)
        except Exception as problem:
            self._observer.retry(examples)
            reason = describe_exception(problem.__cause__ or problem)
            self._problems.warn(
                f"example: the model does not run on it ({reason}); the inputs of its first "
                "training call are used instead"
            )

    def _is_usable(self, method: str) -> bool:
        if not self._is_open:
            self._problems.warn(
                f"{method}: expected an open monitor, got one that was closed; use it inside "
                "`with monitor:` again"
            )
        return self._is_open and not self._is_off

    def _turn_off(self) -> None:
        self._is_off = True
