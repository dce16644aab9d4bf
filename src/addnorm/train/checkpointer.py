"""Who writes a run down: checkpoints and rows, and finds the point from which it goes on."""

import os

from addnorm.core.errors import UserError
from addnorm.core.rows import Row, write_rows
from addnorm.train import checkpoint as checkpoints
from addnorm.train import run_folder as files
from addnorm.train.session import Session
from addnorm.train.state_snapshot import restore, take
from addnorm.train.train_state import Progress, Watcher


class Keeper:
    """Checkpoints and rows of one session; the first process writes, all read."""

    def __init__(self, session: Session, watcher: Watcher) -> None:
        self.session, self.watcher = session, watcher
        self.checkpoints = session.folder / files.CHECKPOINTS
        self.rows = session.folder / files.ROWS
        self.saved = -1
        """Step of the last checkpoint."""

    def resume(self) -> Progress:
        """Go on from the newest checkpoint that is whole; what was written later is cut off."""
        progress = self._restored(every=1)
        self.saved = progress.step if progress.step else -1
        if self.session.world.first and self.rows.exists():
            os.truncate(self.rows, min(progress.rows, self.rows.stat().st_size))
        return progress

    def last(self) -> Progress:
        """Back to the newest checkpoint that every unbroken run would have at this moment, too."""
        progress = self._restored(every=self.session.recipe.save_every)
        if self.session.world.first:
            checkpoints.drop_after(self.checkpoints, progress.step)
        return progress

    def save(self, progress: Progress) -> None:
        """Write a checkpoint, then remove those that are not needed any more."""
        checkpoint = take(self.session, progress)
        if self.session.world.first:
            checkpoints.save(self.checkpoints, checkpoint)
            recipe = self.session.recipe
            regular = progress.step // recipe.save_every * recipe.save_every
            spare = {progress.best_step, regular}
            if before := checkpoints.read_state(self.checkpoints, regular):
                spare.add(before["progress"]["best_step"])  # the best again after a rewind
            checkpoints.prune(self.checkpoints, keep=recipe.keep, spare=spare)
        self.saved = progress.step
        self.session.world.wait()

    def write(self, rows: list[Row]) -> int:
        """Append rows; the file's length is returned."""
        write_rows(self.rows, rows, append=True)
        return self.rows.stat().st_size

    def _restored(self, *, every: int) -> Progress:
        world = self.session.world
        step = world.told(self._newest(every) if world.first else 0)
        if step < 0:
            return Progress()
        checkpoint = checkpoints.load(self.checkpoints, step)
        if checkpoint is None:
            raise UserError(
                f"the checkpoint of step {step} in {self.checkpoints} was changed while it was "
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
        return restore(self.session, checkpoint)

    def _newest(self, every: int) -> int:
        """The newest step with a whole checkpoint, -1 if there is none."""
        for step in checkpoints.steps(self.checkpoints):
            if step % every:
                continue
            if checkpoints.load(self.checkpoints, step) is not None:
                return step
            self.watcher.said(f"the checkpoint of step {step} is damaged and left aside")
        return -1
