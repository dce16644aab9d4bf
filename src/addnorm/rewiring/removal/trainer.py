"""Callback that removes norms in `addnorm.train`."""

from typing import Any

from torch.distributed.tensor import DTensor

from addnorm.core.errors import UserError
from addnorm.rewiring.removal.schedule import NormRemoval
from addnorm.train.callbacks import TrainCallback
from addnorm.train.train_state import TrainState


class NormRemovalCallback(TrainCallback):
    """Removes the norms of a run's model; arguments as of `NormRemoval`."""

    def __init__(self, *, start: int, every: int, keep: int = 0) -> None:
        self.options = {"start": start, "every": every, "keep": keep}
        self.removal: NormRemoval | None = None

    def on_train_start(self, state: TrainState, summary: dict[str, Any]) -> None:
        # Events reach the main process only. DDP sends its buffers to the others, FSDP does not.
        if any(isinstance(each, DTensor) for each in summary["model"].parameters()):
            raise UserError(
                "parallel: expected ddp for the removal of norms, got a sharded model, whose other "
                "processes would keep theirs"
            )
        self.removal = NormRemoval(summary["model"], **self.options)
        self.removal.update(state.step)

    def on_step_end(self, state: TrainState, loss: float) -> None:
        assert self.removal is not None
        self.removal.update(state.step)
