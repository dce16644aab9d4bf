"""Checkpoints and rows of a run: saving, resuming, rewinding.

A checkpoint holds everything that the next step depends on: weights, optimizer state, moving
average, and the `TrainState`. With `checkpoints=full` the main process writes whole tensors: shards
are gathered when a checkpoint is captured and split again when it is restored. With
`checkpoints=sharded` each process writes what it holds. Both can be resumed with another number of
processes.

Two ways back:

- `resume` at the start of a process takes the newest valid checkpoint of any kind.
- `rewind` after a spike takes the newest one at a multiple of `save_every`. An interruption leaves
  a checkpoint at any other step, which an uninterrupted run does not have; a rewind must go back to
  the same step in both.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import fsync_path
from addnorm.core.rows import Row, RowLog
from addnorm.train import checkpoint as checkpoints
from addnorm.train import run_folder as files
from addnorm.train.callbacks import TrainCallback
from addnorm.train.checkpoint import Checkpoint, Tensors
from addnorm.train.distributed import full_tensor
from addnorm.train.session import Session
from addnorm.train.sharding.checkpoint_shards import read_shards
from addnorm.train.train_state import TrainState

KEY_SEPARATOR = "|"
"""Separates parameter name and state name in the keys of stored optimizer tensors."""


class Checkpointer:
    """Writes checkpoints and rows of one session. The main process writes, all processes read."""

    def __init__(self, session: Session, callback: TrainCallback) -> None:
        self.session, self.callback = session, callback
        self.checkpoint_folder = session.folder / files.CHECKPOINTS
        self.rows = RowLog(session.folder / files.ROWS)
        self.last_saved_step = -1
        """Step of the last checkpoint; -1 before the first."""

    def resume(self) -> TrainState:
        """Restore the newest valid checkpoint, and remove the rows written after it.

        Raises:
            UserError: the earlier rows have changed
        """
        state = self._restore_newest(every=1)
        self.last_saved_step = state.step if state.step else -1
        self.session.world.run_on_main(lambda: self._resume_rows(state))
        return state

    def _resume_rows(self, state: TrainState) -> None:
        state.rows_mark.check(self.rows.path)
        # The new mark first: a reader must never find fewer rows than the mark says.
        files.write_arrangement(self.session.folder, self.session.facts, state.rows_mark)
        self.rows.truncate(state.rows_mark)

    def rewind(self) -> TrainState:
        """Restore the newest regular checkpoint, and delete the later ones."""
        state = self._restore_newest(every=self.session.recipe.save_every)
        if self.session.world.is_main:
            checkpoints.drop_after(self.checkpoint_folder, state.step)
        return state

    def save(self, state: TrainState) -> None:
        """Write a checkpoint, then delete those that are no longer needed."""
        session, world = self.session, self.session.world
        if world.is_main and state.rows:
            fsync_path(self.rows.path)  # a checkpoint must not outlive the rows that it marks
        checkpoint = capture_state(session, state)
        if session.recipe.checkpoints == "sharded":
            checkpoints.save_shards(self.checkpoint_folder, checkpoint, world)
        elif world.is_main:
            checkpoints.save(self.checkpoint_folder, checkpoint)
        if world.is_main:
            self._prune(state)
        self.last_saved_step = state.step
        world.barrier()

    def append_rows(self, state: TrainState, rows: list[Row]) -> None:
        """Append rows to `rows.jsonl`, and mark the new end of the file in the state."""
        self.rows.append(rows)
        state.rows_mark = self.rows.mark

    def finish(self) -> None:
        """Store the mark of all rows, so that a later change of them is noticed."""
        if self.session.world.is_main:
            files.write_arrangement(self.session.folder, self.session.facts, self.rows.mark)

    def _prune(self, state: TrainState) -> None:
        recipe = self.session.recipe
        regular = state.step // recipe.save_every * recipe.save_every
        protected = {state.best_step, regular}
        # After a rewind to the regular checkpoint, the best one is the best of that moment.
        if regular_state := checkpoints.read_state(self.checkpoint_folder, regular):
            protected.add(regular_state["progress"]["best_step"])
        checkpoints.prune(self.checkpoint_folder, keep=recipe.keep, protected=protected)

    def _restore_newest(self, *, every: int) -> TrainState:
        """Restore the newest valid checkpoint at a multiple of `every` steps."""
        session, world = self.session, self.session.world
        # The main process chooses: the others must not read another step if a file changes.
        step = world.broadcast(self._find_newest_step(every) if world.is_main else 0)
        if step < 0:
            return TrainState()
        if checkpoints.has_shards(self.checkpoint_folder, step):
            return restore_shards(session, self.checkpoint_folder, step)
        checkpoint = checkpoints.load(self.checkpoint_folder, step)
        if checkpoint is None:
            raise _changed_checkpoint(self.checkpoint_folder, step)
        return restore_state(session, checkpoint)

    def _find_newest_step(self, every: int) -> int:
        """Return the newest step with a valid checkpoint, -1 if there is none."""
        for step in checkpoints.list_steps(self.checkpoint_folder):
            if step % every:
                continue
            if checkpoints.is_valid(self.checkpoint_folder, step):
                return step
            self.callback.on_message(f"ignoring the damaged checkpoint of step {step}")
        return -1


def capture_state(session: Session, state: TrainState) -> Checkpoint:
    """Return a checkpoint of the session. May gather shards, so all processes must call it."""
    # Imported here and below because it takes a second, also in commands that do not train.
    import torch.distributed.checkpoint.state_dict as state_dicts

    # Whole tensors on the CPU, in the main process only; or what each process holds.
    is_full = session.recipe.checkpoints == "full"
    options = state_dicts.StateDictOptions(full_state_dict=is_full, cpu_offload=is_full)
    optimizer: Tensors = {}
    if session.optimizer.has_state:
        optimizer_state = state_dicts.get_optimizer_state_dict(
            session.model, session.optimizer.optimizers, options=options
        )
        optimizer = _flatten_states(optimizer_state)
    model: dict[str, Any] = state_dicts.get_model_state_dict(session.model, options=options)
    tensors: dict[str, Tensors] = {"model": model, "optimizer": optimizer}
    if session.ema is not None:
        tensors["average"] = {
            name: full_tensor(value) if is_full else value
            for name, value in session.ema.values.items()
        }
    data = {
        "progress": state.to_dict(),
        "seed": session.recipe.seed,
        "tokenizer": session.tokenizer.digest,
        "corpus": session.corpus.digest,
    }
    return Checkpoint(state.step, tensors, data)


def _flatten_states(optimizer_state: Mapping[str, Any]) -> Tensors:
    """Return the tensors of an optimizer's state dictionary, by parameter and state name."""
    return {
        f"{weight}{KEY_SEPARATOR}{name}": value
        for weight, values in optimizer_state.get("state", {}).items()
        for name, value in values.items()
    }


def restore_state(session: Session, checkpoint: Checkpoint) -> TrainState:
    """Load weights, optimizer state and moving average into the session; return the train state."""
    import torch.distributed.checkpoint.state_dict as state_dicts

    options = state_dicts.StateDictOptions(full_state_dict=True)
    weights: dict[str, Any] = dict(checkpoint.tensors["model"])
    state_dicts.set_model_state_dict(session.model, weights, options=options)
    states: dict[str, Any] = {}
    for key, value in checkpoint.tensors["optimizer"].items():
        weight, _, name = key.rpartition(KEY_SEPARATOR)
        states.setdefault(weight, {})[name] = value
    if states:
        # The parameter groups (learning rate, decay) are those of the recipe, not stored ones.
        optimizer_state = state_dicts.get_optimizer_state_dict(
            session.model, session.optimizer.optimizers, options=options
        )
        state_dicts.set_optimizer_state_dict(
            session.model,
            session.optimizer.optimizers,
            optim_state_dict=optimizer_state | {"state": states},
            options=options,
        )
    else:
        session.optimizer.clear_state()
    if session.ema is not None:
        session.ema.load(checkpoint.tensors["average"])
    return TrainState.from_dict(checkpoint.state["progress"])


def restore_shards(session: Session, folder: Path, step: int) -> TrainState:
    """Load a sharded checkpoint as `restore_state` does; each process reads only what it needs."""
    import torch.distributed.checkpoint.state_dict as state_dicts

    world, path = session.world, folder / f"step-{step}"
    state = checkpoints.read_state(folder, step)
    if state is None:
        raise _changed_checkpoint(folder, step)
    weights: dict[str, Any] = state_dicts.get_model_state_dict(session.model)
    read_shards(path / "model", weights, world)
    state_dicts.set_model_state_dict(session.model, weights)
    if any((path / "optimizer").iterdir()):
        # Of a new optimizer, torch makes the state that it would have after a step.
        optimizers = session.optimizer.optimizers
        optimizer_state = state_dicts.get_optimizer_state_dict(session.model, optimizers)
        read_shards(path / "optimizer", _flatten_states(optimizer_state), world)
        state_dicts.set_optimizer_state_dict(
            session.model, optimizers, optim_state_dict=optimizer_state
        )
    else:
        session.optimizer.clear_state()
    if session.ema is not None:
        read_shards(path / "average", session.ema.values, world)
    return TrainState.from_dict(state["progress"])


def _changed_checkpoint(folder: Path, step: int) -> UserError:
    return UserError(
        f"the checkpoint of step {step} in {folder} changed while it was read; rerun the same "
        "command"
    )
