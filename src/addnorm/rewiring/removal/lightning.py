"""Callback that removes norms in the `Trainer` of Lightning 2.

from addnorm.rewiring.removal.lightning import NormRemovalCallback
L.Trainer(callbacks=[NormRemovalCallback(start=20, every=2)])
"""

from typing import Any

from addnorm.rewiring.removal.schedule import NormRemoval

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback  # type: ignore[assignment]
    except ImportError:
        raise ImportError(
            "addnorm.rewiring.removal.lightning requires lightning, which is not installed; run "
            "pip install lightning"
        ) from None


class NormRemovalCallback(Callback):
    """Removes the norms of the trained module; arguments as of `NormRemoval`."""

    def __init__(self, *, start: int, every: int, keep: int = 0) -> None:
        super().__init__()
        self.options = {"start": start, "every": every, "keep": keep}
        self.removal: NormRemoval | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the norms, after a checkpoint those that are left."""
        self.removal = NormRemoval(pl_module, **self.options)
        self.removal.update(trainer.global_step)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remove the norms that are due; `global_step` counts optimizer steps."""
        if self.removal is not None:
            self.removal.update(trainer.global_step)
