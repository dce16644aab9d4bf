"""The loop: batches in, updates out, and a state from which it can go on at any moment."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.rows import Row
from addnorm.core.seeds import derive_seed
from addnorm.data.batches import Batch, BatchIterator, DataPosition
from addnorm.kernels.precision import widest_float
from addnorm.measure import Monitor, Nonfinite, SpikeDetector, first_nonfinite
from addnorm.measure.sites import unwrap_model
from addnorm.tasks import LossMeans
from addnorm.train import checkpoint as checkpoints
from addnorm.train import run_folder as files
from addnorm.train.checkpointer import Checkpointer
from addnorm.train.distributed import full_tensor, init_distributed, no_sync
from addnorm.train.recipe import Recipe
from addnorm.train.session import Session, build_session
from addnorm.train.throughput import StopFlag, Throughput, graceful_shutdown
from addnorm.train.train_state import Outcome, TrainCallback, TrainState
from addnorm.train.validation import autocast_context, validate

MAX_SPIKES = 20
"""Updates skipped in a row, or rewinds, after which a run has diverged."""


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    callback: TrainCallback | None = None,
    until: int | None = None,
) -> Outcome:
    """Train what a recipe says into a folder; a run that is there already goes on.

    Killed at any moment and called again, it ends with the same weights, bit by bit. Under
    `torchrun` all processes call it alike. until: a step at which it pauses, as if interrupted.
    """
    folder = Path(folder)
    with init_distributed(recipe.device) as world, ExitStack() as held:
        world.run_on_main(lambda: held.enter_context(files.folder_lock(folder)))
        callback = callback if callback is not None and world.is_main else TrainCallback()
        session = build_session(recipe, folder, world, on_message=callback.on_message)
        try:
            return Trainer(session, callback).run(until)
        except OSError as problem:
            kept = checkpoints.list_steps(folder / files.CHECKPOINTS)
            safe = f"the checkpoint of step {kept[0]} is safe" if kept else "nothing is lost"
            where = f"{problem.filename}: " if problem.filename else ""
            raise UserError(
                f"the run {folder} cannot go on ({where}{problem.strerror or problem}); {safe}: "
                "make room or mend it, and give the same command again"
            ) from None


class Trainer:
    """One run, from its last checkpoint to its end."""

    def __init__(self, session: Session, callback: TrainCallback) -> None:
        self.session, self.callback = session, callback
        self.recipe, self.world = session.recipe, session.world
        self.checkpointer = Checkpointer(session, callback)
        self.detector = SpikeDetector()
        every = self.recipe.monitor_every
        self.monitor = Monitor(session.model, every=every) if every else None
        self.rows: list[Row] = []
        self.reported_skips: dict[str, str] = {}
        self.loss = 0.0
        """The last one; not finite if something is broken."""
        self.weights = [weight for weight in session.model.parameters() if weight.requires_grad]

    def run(self, until: int | None = None) -> Outcome:
        """Go on to the end, or to a step at which to pause."""
        self._set_progress(self.checkpointer.resume())
        self.session.objective.train()  # not at each step: a deep stack has a thousand modules
        with (
            graceful_shutdown() as bell
        ):  # first of all: whoever hears that it began may ask for an end
            self.callback.on_train_start(self.progress, self.session.summarize())
            self.throughput = Throughput(self.progress)
            if not self.progress.step and self.recipe.on_spike == "rewind":
                self._save()
            outcome = self._loop(bell, until)
        self.callback.on_train_end(outcome)
        return outcome

    def _loop(self, bell: StopFlag, until: int | None) -> Outcome:
        stream = self.session.batches.stream(self.progress.position)
        while self.progress.step < self.recipe.steps:
            if until is not None and self.progress.step >= until:
                return self._finish("interrupted", f"paused after step {self.progress.step}")
            if self.recipe.patience and self.progress.stale >= self.recipe.patience:
                why = f"no validation was better than that of step {self.progress.best_step}"
                return self._finish("stopped", why)
            now = self.progress
            trouble = self._step(stream)
            if trouble:
                return self._finish("diverged", trouble)
            if self.progress is now:  # else it went back to where all this was done already
                self._after_step()
            if self.world.any_process(bell.requested):
                return self._finish("interrupted", f"after step {self.progress.step}")
        if not math.isfinite(self.loss):
            return self._finish("diverged", f"the last loss was {self.loss}")
        return self._finish("done")

    def _step(self, stream: Iterator[tuple[Batch, DataPosition]]) -> str:
        """One update; returns why there cannot be another, or nothing."""
        step = self.progress.step + 1
        drawn = [next(stream) for _ in range(self.recipe.accumulate)]
        self.progress.position = drawn[-1][1]
        self._report_skipped(self.session.batches)
        batches = [batch for batch, _ in drawn]
        sums = self._forward_backward(batches, step)
        if self.monitor is not None:
            given, masks = (
                self.session.model_inputs(batches[0]) if self.monitor.is_due(step) else ((), {})
            )
            self.monitor.before_update(step, *given, **masks)
        norm = self._gradient_norm()
        finite = math.isfinite(sums.loss) and math.isfinite(norm)
        self.loss = sums.loss if finite else math.nan
        judged = self.detector.update(self.loss)
        if judged == "diverged" or (judged == "spike" and self.recipe.on_spike != "log"):
            return self._handle_spike(step, batches, sums.loss)
        if judged == "spike":
            self._log_row("spike", sums.loss, step=step)
        self.progress.skipped = 0
        lr = self._optimizer_step(step)
        tokens = sum(batch.tokens for batch in batches)
        self.progress.step, self.progress.tokens = step, self.progress.tokens + tokens
        self.progress.seconds = self.throughput.add_tokens(tokens)
        if self._is_log_step(step):
            self._log_row("loss", sums.loss, split="train")
            if self.monitor is None or not self.monitor.is_due(step):
                self._log_row("gradient_norm", norm)
            self._log_row("lr", lr)
            self._log_row("tokens_per_second", self.throughput.tokens_per_second())
        self.callback.on_step_end(self.progress, sums.loss)
        return ""

    def _forward_backward(self, batches: list[Batch], step: int) -> LossMeans:
        """Gradients of the mean loss over all batches and processes."""
        world = self.world
        self._seed(step)
        self.session.optimizer.zero_grad()
        asked = sum(batch.count for batch in batches)
        totals = torch.zeros(3, dtype=widest_float(world.device), device=world.device)
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with nullcontext() if last else no_sync(self.session.objective):
                loss, sums = self._forward_loss(batch, self.session.objective)
                # Processes average their gradients; each is to give its part of one sum.
                (loss * (world.size / asked)).backward()  # type: ignore[no-untyped-call]
            totals += sums
        return LossMeans(*world.all_reduce(totals).tolist())

    def _forward_loss(self, batch: Batch, objective: nn.Module) -> tuple[Tensor, Tensor]:
        """Loss and sums of this process' part of a batch."""
        part = batch.shard(self.world.rank, self.world.size).to(self.world.device)
        with autocast_context(self.recipe, self.world):
            loss, sums = objective(*part.inputs_and_targets)
        return loss, sums

    def _seed(self, step: int) -> None:
        """All chance of a step, such as dropout, follows from its number.

        `torch.manual_seed` would also seed devices that are not there, which is slow.
        """
        seed = derive_seed(self.recipe.seed, "step", step, self.world.rank)
        device = self.world.device
        torch.default_generator.manual_seed(seed)
        if device.type != "cpu":
            torch.get_device_module(device).manual_seed(seed)

    def _gradient_norm(self) -> float:
        bound = self.recipe.clip if self.recipe.clip is not None else math.inf
        return float(full_tensor(torch.nn.utils.clip_grad_norm_(self.weights, bound)))

    def _optimizer_step(self, step: int) -> float:
        """Move the weights; the learning rate of that."""
        session = self.session
        lr = session.optimizer.set_lr(session.schedule.factor(step, self.recipe.steps))
        session.optimizer.step()
        session.model.after_step()
        if session.ema is not None:
            session.ema.update(step)
        if self.monitor is not None:
            self.rows += self.monitor.after_update()
        return lr

    def _handle_spike(self, step: int, batches: list[Batch], loss: float) -> str:
        """What the recipe wants instead of an update on a spike; returns why that is no use."""
        was, where, words = self.progress, {}, f"loss {loss:.4g} at step {step}"
        if not math.isfinite(self.loss):
            culprit = self._locate_nonfinite(batches, step)
            words += f": {culprit.message if culprit else 'not finite, but not when done again'}"
            where = culprit.location if culprit else {}
        lost = self.recipe.on_spike == "log"
        if self.recipe.on_spike == "skip":
            was.step, was.skipped = step, was.skipped + 1
            lost = was.skipped > MAX_SPIKES
        elif self.recipe.on_spike == "rewind":
            lost = was.rewinds >= MAX_SPIKES
        self._log_row("diverged" if lost else self.recipe.on_spike, loss, step=step, **where)
        self.callback.on_message(words)
        if self.recipe.on_spike == "rewind" and not lost:
            self._flush()
            self._set_progress(self.checkpointer.rewind())
            self.progress.position, self.progress.rewinds = was.position, was.rewinds + 1
            self.progress.rows = was.rows
            self.callback.on_message(f"went back to step {self.progress.step}; the data go on")
        return words if lost else ""

    def _locate_nonfinite(self, batches: list[Batch], step: int) -> Nonfinite | None:
        """Where the first NaN arose, by doing the step again with the same chance."""
        objective = unwrap_model(self.session.objective)  # no gradients are averaged for this

        def again() -> Tensor:
            self._seed(step)
            return torch.stack([self._forward_loss(batch, objective)[0] for batch in batches]).sum()

        return first_nonfinite(self.session.model, again)

    def _after_step(self) -> None:
        """Validation and checkpoint, where they are due."""
        step, recipe = self.progress.step, self.recipe
        last = step == recipe.steps
        due = bool(recipe.valid_every) and (step % recipe.valid_every == 0 or last)
        better = due and self._validate()
        if self._is_log_step(step):
            self._flush()
        if step % recipe.save_every == 0 or last or better:
            self._save()

    def _is_log_step(self, step: int) -> bool:
        return step in (1, self.recipe.steps) or step % self.recipe.log_every == 0

    def _validate(self) -> bool:
        """The loss on what was held out; whether it is the lowest so far."""
        if self.session.valid_batches is None:
            return False
        sums = validate(self.session, self.session.valid_batches)
        self._report_skipped(self.session.valid_batches)
        self.loss = sums.loss if not math.isfinite(sums.loss) else self.loss
        self._log_row("loss", sums.loss, split="valid")
        for name, value in self.session.task.validation_metrics(sums).items():
            self._log_row(name, value, split="valid")
        better = sums.loss < self.progress.best
        if better:
            self.progress.best, self.progress.best_step = sums.loss, self.progress.step
        self.progress.stale = 0 if better else self.progress.stale + 1
        return better

    def _finish(self, ending: str, reason: str = "") -> Outcome:
        """The last checkpoint and the last rows; a diverged run keeps the checkpoints it had."""
        self._log_row("ended", self.progress.step, ending=ending)
        self._flush()
        if ending != "diverged" and self.checkpointer.last_saved_step != self.progress.step:
            self._save()
        return Outcome(ending, self.progress, reason)

    def _report_skipped(self, data: BatchIterator) -> None:
        """Say what was left out or cut, whenever there is more of it."""
        words = data.describe_skipped()
        if words != self.reported_skips.get(data.split, ""):
            self.reported_skips[data.split] = words
            self.callback.on_message(f"of the {data.split} part so far: {words}")

    def _set_progress(self, progress: TrainState) -> None:
        self.progress = progress
        if progress.detector:
            self.detector = SpikeDetector.from_dict(progress.detector)

    def _save(self) -> None:
        self._flush()
        self.progress.detector = self.detector.to_dict()
        self.checkpointer.save(self.progress)

    def _log_row(self, name: str, value: float, *, step: int | None = None, **fields: Any) -> None:
        at = self.progress.step if step is None else step
        self.rows.append({"step": at, "name": name, "value": value, **fields})

    def _flush(self) -> None:
        """Rows to the file and to the watcher; their length is part of the progress."""
        rows, self.rows = self.rows, []
        if self.world.is_main and rows:
            self.progress.rows = self.checkpointer.append_rows(rows)
            self.callback.on_rows(rows)
