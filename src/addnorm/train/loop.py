"""The loop: batches in, updates out, and a state from which it can go on at any moment."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.rows import Row
from addnorm.core.seeds import derive_seed
from addnorm.data.batches import Batch, Batches, Position
from addnorm.measure import Monitor, SpikeDetector, first_nonfinite
from addnorm.train import checkpoint as checkpoints
from addnorm.train import folder as files
from addnorm.train.clock import Bell, Clock, stoppable
from addnorm.train.keeper import Keeper
from addnorm.train.objective import Means
from addnorm.train.parallel import joined, quiet, whole
from addnorm.train.progress import Outcome, Progress, Watcher
from addnorm.train.recipe import Recipe
from addnorm.train.session import Session, prepare
from addnorm.train.validate import precision, validate

PATIENCE = 20
"""Updates skipped in a row, or rewinds, after which a run has diverged."""


def train(recipe: Recipe, folder: str | Path, *, watcher: Watcher | None = None) -> Outcome:
    """Train what a recipe says into a folder; a run that is there already goes on.

    Killed at any moment and called again, it ends with the same weights, bit by bit. Under
    `torchrun` all processes call it alike.
    """
    folder = Path(folder)
    with joined(recipe.device) as world, files.locked(folder) if world.first else nullcontext():
        session = prepare(recipe, folder, world)
        watcher = watcher if watcher is not None and world.first else Watcher()
        try:
            return Trainer(session, watcher).run()
        except OSError as problem:
            kept = checkpoints.steps(folder / files.CHECKPOINTS)
            where = f"the checkpoint of step {kept[0]} is safe" if kept else "nothing is lost"
            raise UserError(
                f"cannot write into {folder} ({problem.strerror or problem}); {where}: make "
                "room and give the same command again"
            ) from None


class Trainer:
    """One run, from its last checkpoint to its end."""

    def __init__(self, session: Session, watcher: Watcher) -> None:
        self.session, self.watcher = session, watcher
        self.recipe, self.world = session.recipe, session.world
        self.keeper = Keeper(session, watcher)
        self.detector = SpikeDetector()
        every = self.recipe.monitor_every
        self.monitor = Monitor(session.model, every=every) if every else None
        self.rows: list[Row] = []
        self.told: dict[str, str] = {}
        self.weights = [weight for weight in session.model.parameters() if weight.requires_grad]

    def run(self) -> Outcome:
        """Go on to the end."""
        self._set(self.keeper.resume())
        self.watcher.began(self.progress, self.session.facts())
        self.clock = Clock(self.progress)
        if not self.progress.step and self.recipe.on_spike == "rewind":
            self._save()
        with stoppable() as bell:
            outcome = self._loop(bell)
        self.watcher.ended(outcome)
        return outcome

    def _loop(self, bell: Bell) -> Outcome:
        stream = self.session.batches.stream(self.progress.position)
        while self.progress.step < self.recipe.steps:
            if self.recipe.patience and self.progress.stale >= self.recipe.patience:
                why = f"no validation was better than that of step {self.progress.best_step}"
                return self._close("stopped", why)
            trouble = self._step(stream)
            if trouble:
                return self._close("diverged", trouble)
            self._after_step()
            if self.world.agreed(bell.rung):
                return self._close("interrupted", f"after step {self.progress.step}")
        return self._close("done")

    def _step(self, stream: Iterator[tuple[Batch, Position]]) -> str:
        """One update; returns why there cannot be another, or nothing."""
        step = self.progress.step + 1
        drawn = [next(stream) for _ in range(self.recipe.accumulate)]
        self.progress.position = drawn[-1][1]
        self._tell(self.session.batches)
        batches = [batch for batch, _ in drawn]
        sums = self._backward(batches, step)
        if self.monitor is not None:
            given, masks = self.session.call(batches[0]) if self.monitor.due(step) else ((), {})
            self.monitor.before_update(step, *given, **masks)
        norm = self._gradient_norm()
        finite = math.isfinite(sums.loss) and math.isfinite(norm)
        verdict = self.detector.judge(sums.loss if finite else math.nan)
        if verdict != "fine":
            self._row("spike", sums.loss, step=step)
            if verdict == "diverged" or self.recipe.on_spike != "log":
                return self._avoid(step, batches, sums.loss, finite=finite)
        self.progress.skipped = 0
        lr = self._update(step)
        tokens = sum(batch.tokens for batch in batches)
        self.progress.step, self.progress.tokens = step, self.progress.tokens + tokens
        self.progress.seconds = self.clock.tick(tokens)
        if step % self.recipe.log_every == 0 or step == 1:
            self._row("loss", sums.loss, split="train")
            if self.monitor is None or not self.monitor.due(step):
                self._row("gradient_norm", norm)
            self._row("lr", lr)
            self._row("tokens_per_second", self.clock.rate())
        self.watcher.stepped(self.progress, sums.loss)
        return ""

    def _backward(self, batches: list[Batch], step: int) -> Means:
        """Gradients of the mean loss over all batches and processes."""
        world, recipe = self.world, self.recipe
        torch.manual_seed(derive_seed(recipe.seed, "step", step, world.rank))
        self.session.objective.train()
        self.session.optimizer.zero_grad()
        asked = sum(batch.count for batch in batches)
        totals = torch.zeros(3, dtype=torch.float64, device=world.device)
        for number, batch in enumerate(batches):
            part = batch.part(world.rank, world.size).to(world.device)
            last = number == len(batches) - 1
            with nullcontext() if last else quiet(self.session.objective):
                with precision(recipe, world):
                    loss, sums = self.session.objective(*part.sides)
                # Processes average their gradients; each is to give its part of one sum.
                (loss * (world.size / asked)).backward()
            totals += sums
        return Means(*world.total(totals).tolist())

    def _gradient_norm(self) -> float:
        bound = self.recipe.clip if self.recipe.clip is not None else math.inf
        return float(whole(torch.nn.utils.clip_grad_norm_(self.weights, bound)))

    def _update(self, step: int) -> float:
        """Move the weights; the learning rate of that."""
        session = self.session
        lr = session.optimizer.set_lr(session.schedule.factor(step, self.recipe.steps))
        session.optimizer.step()
        session.model.after_step()
        if session.average is not None:
            session.average.update(step)
        if self.monitor is not None:
            self.rows += self.monitor.after_update()
        return lr

    def _avoid(self, step: int, batches: list[Batch], loss: float, *, finite: bool) -> str:
        """What the recipe wants instead of an update on a spike; returns why that is no use."""
        policy, was = self.recipe.on_spike, self.progress
        words = f"loss {loss:.4g} at step {step}"
        if not finite:
            words += f": {self._culprit(batches, step)}"
        self.watcher.said(words)
        if policy == "log":
            return words
        if policy == "rewind":
            self._set(self.keeper.last())
            self.progress.position, self.progress.rewinds = was.position, was.rewinds + 1
            self.watcher.said(f"went back to step {self.progress.step}; the data go on")
            return words if self.progress.rewinds > PATIENCE else ""
        was.step, was.skipped = step, was.skipped + 1
        return words if was.skipped > PATIENCE else ""

    def _culprit(self, batches: list[Batch], step: int) -> str:
        """Where the first NaN arose, by doing the step again with the same chance."""
        world, found = self.world, []
        for batch in batches:  # all of them, as the other processes do
            part = batch.part(world.rank, world.size).to(world.device)
            torch.manual_seed(derive_seed(self.recipe.seed, "step", step, world.rank))
            loss = partial(_loss_of, self.session.objective, part)
            found.append(first_nonfinite(self.session.model, loss))
        culprit = next((each for each in found if each is not None), None)
        if culprit is None:
            return "it did not arise again"
        self.rows.append({"step": step, **culprit.row})
        return culprit.sentence

    def _after_step(self) -> None:
        """Validation and checkpoint, where they are due."""
        step, recipe = self.progress.step, self.recipe
        last = step == recipe.steps
        due = bool(recipe.valid_every) and (step % recipe.valid_every == 0 or last)
        better = due and self._validate()
        if step % recipe.log_every == 0 or step == 1:
            self._flush()
        if step % recipe.save_every == 0 or last or better:
            self._save()

    def _validate(self) -> bool:
        """The loss on what was held out; whether it is the lowest so far."""
        if self.session.held_out is None:
            return False
        sums = validate(self.session, self.session.held_out)
        self._tell(self.session.held_out)
        self._row("loss", sums.loss, split="valid")
        name, value = (
            ("accuracy", sums.accuracy)
            if self.recipe.task == "classify"
            else ("perplexity", math.exp(min(sums.loss, 700.0)))
        )
        self._row(name, value, split="valid")
        better = sums.loss < self.progress.best
        if better:
            self.progress.best, self.progress.best_step = sums.loss, self.progress.step
        self.progress.stale = 0 if better else self.progress.stale + 1
        return better

    def _close(self, ending: str, why: str = "") -> Outcome:
        """The last checkpoint and the last rows; a diverged run keeps the checkpoints it had."""
        self._flush()
        if ending != "diverged" and self.keeper.saved != self.progress.step:
            self._save()
        return Outcome(ending, self.progress, why)

    def _tell(self, data: Batches) -> None:
        """Say what was left out or cut, whenever there is more of it."""
        words = data.told()
        if words != self.told.get(data.split, ""):
            self.told[data.split] = words
            self.watcher.said(f"of the {data.split} part so far: {words}")

    def _set(self, progress: Progress) -> None:
        self.progress = progress
        if progress.detector:
            self.detector = SpikeDetector.from_dict(progress.detector)

    def _save(self) -> None:
        self._flush()
        self.progress.detector = self.detector.to_dict()
        self.keeper.save(self.progress)

    def _row(self, name: str, value: float, *, step: int | None = None, **where: Any) -> None:
        at = self.progress.step if step is None else step
        self.rows.append({"step": at, "name": name, "value": value, **where})

    def _flush(self) -> None:
        """Rows to the file and to the watcher; their length is part of the progress."""
        rows, self.rows = self.rows, []
        if self.world.first and rows:
            self.progress.rows = self.keeper.write(rows)
            self.watcher.measured(rows)


def _loss_of(objective: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = objective(*batch.sides)[0]
    return loss
