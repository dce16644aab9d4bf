"""Who writes a run down: checkpoints and rows, and finds the point from which it goes on."""

import os

from addnorm.core.errors import UserError
from addnorm.core.rows import Row, write_rows
from addnorm.train import checkpoint as checkpoints
from addnorm.train import run_folder as files
from addnorm.train.callbacks import TrainCallback
from addnorm.train.session import Session
from addnorm.train.state_snapshot import capture_state, restore_state
from addnorm.train.train_state import TrainState


class Checkpointer:
    """Checkpoints and rows of one session; the first process writes, all read."""

    def __init__(self, session: Session, callback: TrainCallback) -> None:
        self.session, self.callback = session, callback
        self.checkpoint_folder = session.folder / files.CHECKPOINTS
        self.rows_path = session.folder / files.ROWS
        self.last_saved_step = -1
        """Step of the last checkpoint."""

    def resume(self) -> TrainState:
        """Go on from the newest checkpoint that is whole; what was written later is cut off."""
        progress = self._restore_newest(every=1)
        self.last_saved_step = progress.step if progress.step else -1
        if self.session.world.is_main and self.rows_path.exists():
            os.truncate(self.rows_path, min(progress.rows, self.rows_path.stat().st_size))
        return progress

    def rewind(self) -> TrainState:
        """Back to the newest checkpoint that every unbroken run would have at this moment, too."""
        progress = self._restore_newest(every=self.session.recipe.save_every)
        if self.session.world.is_main:
            checkpoints.drop_after(self.checkpoint_folder, progress.step)
        return progress

    def save(self, progress: TrainState) -> None:
        """Write a checkpoint, then remove those that are not needed any more."""
        checkpoint = capture_state(self.session, progress)
        if self.session.world.is_main:
            checkpoints.save(self.checkpoint_folder, checkpoint)
            recipe = self.session.recipe
            regular = progress.step // recipe.save_every * recipe.save_every
            spare = {progress.best_step, regular}
            if before := checkpoints.read_state(self.checkpoint_folder, regular):
                spare.add(before["progress"]["best_step"])  # the best again after a rewind
            checkpoints.prune(self.checkpoint_folder, keep=recipe.keep, protected=spare)
        self.last_saved_step = progress.step
        self.session.world.barrier()

    def append_rows(self, rows: list[Row]) -> int:
        """Append rows; the file's length is returned."""
        write_rows(self.rows_path, rows, append=True)
        return self.rows_path.stat().st_size

    def _restore_newest(self, *, every: int) -> TrainState:
        world = self.session.world
        step = world.broadcast(self._find_newest_step(every) if world.is_main else 0)
        if step < 0:
            return TrainState()
        checkpoint = checkpoints.load(self.checkpoint_folder, step)
        if checkpoint is None:
            raise UserError(
                f"the checkpoint of step {step} in {self.checkpoint_folder} was changed while it was "
                "read; wanted it left alone: give the same command again"
            )
        if checkpoint.state["tokenizer"] != self.session.tokenizer.digest:
            raise UserError(
                f"{self.session.folder / files.TOKENIZER} is the tokenizer of another run; put the "
                "one back with which this run began"
            )
        if checkpoint.state["corpus"] != self.session.corpus.digest:
            raise UserError(
                f"the corpus {self.session.corpus.folder} was changed since this run began; put the"
                " old one back, or begin anew with another -o"
            )
        return restore_state(self.session, checkpoint)

    def _find_newest_step(self, every: int) -> int:
        """The newest step with a whole checkpoint, -1 if there is none."""
        for step in checkpoints.list_steps(self.checkpoint_folder):
            if step % every:
                continue
            if checkpoints.load(self.checkpoint_folder, step) is not None:
                return step
            self.callback.on_message(f"the checkpoint of step {step} is damaged and left aside")
        return -1
