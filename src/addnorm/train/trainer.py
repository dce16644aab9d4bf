"""The training loop.

One optimizer step:

1. take the next `accumulate` batches from the data stream;
2. compute the gradients of their mean loss (`gradients.py`);
3. clip the gradients, and let the spike detector judge the loss;
4. update weights, moving average and learning rate, or skip or rewind after a spike;
5. log rows, call the callback, and, when due, validate and save a checkpoint.

Resuming. A run that is interrupted at any point, even by `kill -9`, and started again ends with the
same weights, bit for bit, as a run without interruption, and with the same rows except for
`tokens_per_second`. Everything that a step depends on is either in the checkpoint or a function of
the step number:

- weights, optimizer state and moving average are stored in the checkpoint;
- the position in the data, the counters and the spike detector are stored in `TrainState`;
- learning rate, dropout masks and the order of the data are functions of step, epoch and seed;
- `rows.jsonl` is truncated to the length that the checkpoint recorded, so rows written after the
  checkpoint do not appear twice.

Steps after the last complete checkpoint are repeated and give the same result.

Waiting. On a GPU, with `on_spike=log`, the loss of a step is read when it is needed: when the step
is logged, measured, validated or saved, and after `MAX_PENDING` steps at the latest. Until then the
host prepares the next steps. If a loss turns out not to be finite, the device has left the weights
as they were before that step (`Optimizer.step`), so that the same is reported as on a CPU.

Spikes. `recipe.on_spike` decides what happens when the loss jumps. `log` writes a row and performs
the update. `skip` discards the update. `rewind` restores the last regular checkpoint but keeps the
position in the data, so that training continues with later batches. A loss that is not finite ends
the run under `log`, and counts as a spike under `skip` and `rewind`. After `MAX_SPIKES` skips in a
row, or as many rewinds, the run ends as diverged.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.core.interrupts import StopFlag, graceful_shutdown
from addnorm.core.locks import LOCK_FILE, folder_lock
from addnorm.core.rows import Row, thinned_interval
from addnorm.data.batches import Batch, BatchIterator, DataPosition
from addnorm.measure import Monitor, SpikeDetector
from addnorm.train import checkpoint as checkpoints
from addnorm.train import run_folder as files
from addnorm.train.callbacks import TrainCallback
from addnorm.train.checkpointer import Checkpointer
from addnorm.train.distributed import init_distributed
from addnorm.train.environment import collect_versions
from addnorm.train.gradients import StepMetrics, forward_backward, locate_nonfinite
from addnorm.train.recipe import Recipe
from addnorm.train.session import Session, build_session
from addnorm.train.sharding.tensor_parallel import clip_gradients
from addnorm.train.train_state import Outcome, Throughput, TrainState
from addnorm.train.validation import validate

MAX_SPIKES = 20
"""Skipped updates in a row, or rewinds in a run, after which the run ends as diverged."""

MAX_PENDING = 16
"""Steps whose loss the host has not read, at most."""

MAX_DENSE_LOGS = 20_000
"""Logged steps that are `log_every` apart; later ones are further apart, see `thinned_interval`."""


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    callback: TrainCallback | None = None,
    until: int | None = None,
) -> Outcome:
    """Train a model, or resume the run in `folder`.

    Under `torchrun` every process makes the same call.

    Args:
        recipe: all choices of the run
        folder: the run's folder; new, empty, or with an unfinished run of the same recipe
        callback: receives the events of the run, in the main process only
        until: step at which to pause, as if interrupted; None trains to the end

    Returns:
        How the run ended, and its state.

    Raises:
        UserError: the recipe, the corpus or the folder cannot be used
    """
    folder = Path(folder)
    with init_distributed(recipe.device, recipe.tensor_parallel) as world, ExitStack() as locks:
        # Copies of the corpus may be in different places; their content is compared later.
        keys = {name: value for name, value in recipe.to_flat_dict().items() if name != "data"}
        world.check_equal(keys | collect_versions())
        world.run_on_main(lambda: locks.enter_context(folder_lock(folder)))
        world.check_visible(folder / LOCK_FILE)
        callback = callback if callback is not None and world.is_main else TrainCallback()
        session = build_session(recipe, folder, world, on_message=callback.on_message)
        try:
            return Trainer(session, callback).run(until)
        except OSError as problem:
            raise _write_error(folder, problem) from None


def _write_error(folder: Path, problem: OSError) -> UserError:
    steps = checkpoints.list_steps(folder / files.CHECKPOINTS)
    intact = f"the checkpoint of step {steps[0]} is intact" if steps else "no step is lost"
    path = f"{problem.filename}: " if problem.filename else ""
    return UserError(
        f"cannot write to run {folder} ({path}{problem.strerror or problem}); {intact}: free disk "
        "space and rerun the same command to resume"
    )


class Trainer:
    """Trains one session from its last checkpoint to its end."""

    def __init__(self, session: Session, callback: TrainCallback) -> None:
        self.session, self.callback = session, callback
        self.recipe, self.world = session.recipe, session.world
        self.checkpointer = Checkpointer(session, callback)
        self.detector = SpikeDetector()
        every = self.recipe.monitor_every
        self.monitor = Monitor(session.model, every=every) if every else None
        self.rows: list[Row] = []
        """Rows that are not written yet."""
        self.reported_skips: dict[str, str] = {}
        """The last message about skipped records, by split."""
        self.loss = 0.0
        """Loss of the last step or validation; NaN if a loss or gradient was not finite."""
        self.pending: list[StepMetrics] = []
        """Steps whose loss is still on the device."""
        self.weights = [weight for weight in session.model.parameters() if weight.requires_grad]

    def run(self, until: int | None = None) -> Outcome:
        """Train to the end, or to step `until`."""
        self._set_state(self.checkpointer.resume())
        # Once, not at each step: a deep stack has about a thousand modules.
        self.session.objective.train()
        # Entered before on_train_start, so that a callback may already request a stop.
        with graceful_shutdown() as stop_flag:
            self.callback.on_train_start(self.state, self.session.summarize())
            self.throughput = Throughput(self.state)
            if not self.state.step and self.recipe.on_spike == "rewind":
                self._save()  # a checkpoint to rewind to, even from the first steps
            outcome = self._loop(stop_flag, until)
        self.callback.on_train_end(outcome)
        return outcome

    def _loop(self, stop_flag: StopFlag, until: int | None) -> Outcome:
        stream = self.session.batches.stream(self.state.position)
        while self.state.step < self.recipe.steps:
            if until is not None and self.state.step >= until:
                if reason := self._read_pending():
                    return self._finish("diverged", reason)
                return self._finish("interrupted", f"after step {self.state.step}")
            if self.recipe.patience and self.state.stale >= self.recipe.patience:
                reason = f"no validation loss below that of step {self.state.best_step}"
                return self._finish("stopped", reason)
            state = self.state
            reason = self._step(stream)
            if reason:
                return self._finish("diverged", reason)
            if self.state is state:  # not rewound: the restored step is already validated and saved
                self._after_step()
            if self.pending and self.world.size > 1:
                continue  # to ask the others, all must wait for their devices
            if self.world.any_process(stop_flag.requested):
                if reason := self._read_pending():
                    return self._finish("diverged", reason)
                return self._finish("interrupted", f"after step {self.state.step}")
        if not math.isfinite(self.loss):
            return self._finish("diverged", f"the last loss was {self.loss}")
        return self._finish("done")

    def _step(self, stream: Iterator[tuple[Batch, DataPosition]]) -> str:
        """Perform one optimizer step; return why training cannot continue, or an empty string."""
        step = self.state.step + 1
        batches = self._next_batches(stream)
        totals = forward_backward(self.session, batches, step)
        self._monitor_gradients(step, batches[0])
        norm = clip_gradients(self.weights, self.recipe.clip)
        metrics = StepMetrics(step, batches, torch.cat((totals, norm.reshape(1).to(totals))))
        if self._can_wait(step):
            self.pending.append(metrics)
            self._update(metrics, skip=torch.stack([each.nonfinite for each in self.pending]).max())
            return ""
        if reason := self._read_pending():
            return reason
        status = self._judge(metrics)
        if status == "diverged" or (status == "spike" and self.recipe.on_spike != "log"):
            return self._handle_spike(metrics)
        lr = self._update(metrics)
        if self._is_log_step(step):
            self._log(step, loss=metrics.loss, gradient_norm=metrics.gradient_norm, lr=lr)
        self.callback.on_step_end(self.state, metrics.loss)
        return ""

    @property
    def defers_reading(self) -> bool:
        """Whether the loss of a step may stay on the device for some steps."""
        session = self.session
        return (
            self.world.device.type != "cpu"
            and self.recipe.on_spike == "log"
            and session.qk_clip is None
        )

    def _can_wait(self, step: int) -> bool:
        """Return whether nothing needs the loss of this step yet."""
        return (
            self.defers_reading
            and len(self.pending) < MAX_PENDING
            and not self._is_log_step(step)
            and not (self.monitor is not None and self.monitor.is_due(step))
            and not any(
                every and step % every == 0
                for every in (self.recipe.valid_every, self.recipe.save_every)
            )
        )

    def _read_pending(self) -> str:
        """Judge the steps that have not been read; return why training cannot continue, if so."""
        pending, self.pending = self.pending, []
        for number, metrics in enumerate(pending):
            if self._judge(metrics) == "diverged":
                self.state.step = metrics.step - 1
                self.state.tokens -= sum(each.num_tokens for each in pending[number:])
                return self._handle_spike(metrics)
            state = replace(self.state, step=metrics.step)
            self.callback.on_step_end(state, metrics.loss)
        return ""

    def _judge(self, metrics: StepMetrics) -> str:
        """Read the loss of a step, and return what the spike detector says; log a spike."""
        self.loss = metrics.finite_loss
        status = self.detector.update(self.loss)
        if status == "spike" and self.recipe.on_spike == "log":
            self._add_row("spike", metrics.loss, step=metrics.step)
        return status

    def _update(self, metrics: StepMetrics, *, skip: Tensor | None = None) -> float:
        """Update weights and counters; return the learning rate."""
        self.state.skipped = 0
        lr = self._optimizer_step(metrics.step, skip)
        self.state.step = metrics.step
        self.state.tokens += metrics.num_tokens
        self.state.seconds = self.throughput.add_tokens(metrics.num_tokens)
        return lr

    def _next_batches(self, stream: Iterator[tuple[Batch, DataPosition]]) -> list[Batch]:
        batches = []
        for _ in range(self.recipe.accumulate):
            batch, self.state.position = next(stream)
            batches.append(batch)
        self._report_skipped(self.session.batches)
        return batches

    def _monitor_gradients(self, step: int, batch: Batch) -> None:
        """Let the monitor measure gradients and activations before the update, if it is due."""
        if self.monitor is None:
            return
        inputs, masks = self.session.model_inputs(batch) if self.monitor.is_due(step) else ((), {})
        self.monitor.before_update(step, *inputs, **masks)

    def _optimizer_step(self, step: int, skip: Tensor | None) -> float:
        """Update weights and moving average; return the learning rate."""
        session = self.session
        lr = session.optimizer.set_lr(session.schedule.factor(step, self.recipe.steps))
        session.optimizer.step(skip=skip)
        if session.qk_clip is not None:
            session.world.max_over_processes(session.qk_clip.largest)
            session.qk_clip.apply()
        session.model.after_step()
        if session.ema is not None:
            session.ema.update(step)
        if self.monitor is not None:
            self.rows += self.monitor.after_update()
        return lr

    def _log(self, step: int, *, loss: float, gradient_norm: float, lr: float) -> None:
        self._add_row("loss", loss, split="train")
        if self.monitor is None or not self.monitor.is_due(step):  # the monitor logs it otherwise
            self._add_row("gradient_norm", gradient_norm)
        self._add_row("lr", lr)
        self._add_row("tokens_per_second", self.throughput.tokens_per_second())

    def _handle_spike(self, metrics: StepMetrics) -> str:
        """Skip, rewind or end the run; return why it has diverged, or an empty string."""
        state, policy, fields = self.state, self.recipe.on_spike, {}
        step, loss = metrics.step, metrics.loss
        text = f"loss {loss:.4g} at step {step}"
        if not math.isfinite(self.loss):
            location = locate_nonfinite(self.session, metrics.batches, step)
            text += f": {location.message if location else 'not finite, but finite when repeated'}"
            fields = location.location if location else {}
        if policy == "skip":
            state.step, state.skipped = step, state.skipped + 1
            has_diverged = state.skipped > MAX_SPIKES
        else:
            has_diverged = policy == "log" or state.rewinds >= MAX_SPIKES
        self._add_row("diverged" if has_diverged else policy, loss, step=step, **fields)
        self.callback.on_message(text)
        if policy == "rewind" and not has_diverged:
            self._rewind()
        return text if has_diverged else ""

    def _rewind(self) -> None:
        """Restore the last regular checkpoint, and continue with the data after the spike."""
        self._flush()
        before = self.state
        self._set_state(self.checkpointer.rewind())
        self.state.position, self.state.rewinds = before.position, before.rewinds + 1
        self.state.rows_mark = before.rows_mark
        self.callback.on_message(f"rewound to step {self.state.step}; the data continue")

    def _after_step(self) -> None:
        """Validate, write rows and save a checkpoint, each when it is due."""
        step, recipe = self.state.step, self.recipe
        is_last = step == recipe.steps
        is_due = bool(recipe.valid_every) and (step % recipe.valid_every == 0 or is_last)
        is_best = is_due and self._validate()
        if self._is_log_step(step):
            self._flush()
        if step % recipe.save_every == 0 or is_last or is_best:
            self._save()

    def _is_log_step(self, step: int) -> bool:
        every = thinned_interval(self.recipe.log_every, step, full=MAX_DENSE_LOGS)
        return step in (1, self.recipe.steps) or step % every == 0

    def _validate(self) -> bool:
        """Log the validation loss; return whether it is the lowest so far."""
        if self.session.valid_batches is None:
            return False
        means = validate(self.session, self.session.valid_batches)
        self._report_skipped(self.session.valid_batches)
        if not math.isfinite(means.loss):
            self.loss = means.loss
        self._add_row("loss", means.loss, split="valid")
        for name, value in self.session.task.validation_metrics(means).items():
            self._add_row(name, value, split="valid")
        is_best = means.loss < self.state.best
        if is_best:
            self.state.best, self.state.best_step = means.loss, self.state.step
        self.state.stale = 0 if is_best else self.state.stale + 1
        return is_best

    def _finish(self, ending: str, reason: str = "") -> Outcome:
        """Write the last rows and checkpoint; a diverged run keeps its earlier checkpoints only."""
        self._add_row("ended", self.state.step, ending=ending)
        self._flush()
        if ending != "diverged" and self.checkpointer.last_saved_step != self.state.step:
            self._save()
        self.checkpointer.finish()
        return Outcome(ending, self.state, reason)

    def _report_skipped(self, data: BatchIterator) -> None:
        """Report skipped and truncated records whenever there are more of them."""
        text = data.describe_skipped()
        if text != self.reported_skips.get(data.split, ""):
            self.reported_skips[data.split] = text
            self.callback.on_message(f"of the {data.split} split so far: {text}")

    def _set_state(self, state: TrainState) -> None:
        self.state = state
        if state.detector:
            self.detector = SpikeDetector.from_dict(state.detector)

    def _save(self) -> None:
        self._flush()
        self.state.detector = self.detector.to_dict()
        self.checkpointer.save(self.state)

    def _add_row(self, name: str, value: float, *, step: int | None = None, **fields: Any) -> None:
        step = self.state.step if step is None else step
        self.rows.append({"step": step, "name": name, "value": value, **fields})

    def _flush(self) -> None:
        """Write the pending rows, and mark the end of `rows.jsonl` in the state."""
        rows, self.rows = self.rows, []
        if self.world.is_main and rows:
            self.checkpointer.append_rows(self.state, rows)
            self.callback.on_rows(rows)
