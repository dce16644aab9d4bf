"""Callback that removes norms in the `Trainer` of transformers.

from addnorm.rewiring.removal.hugging_face import NormRemovalCallback
Trainer(..., callbacks=[NormRemovalCallback(start=20, every=2)])
"""

from typing import Any

from addnorm.rewiring.removal.schedule import NormRemoval

try:
    from transformers import TrainerCallback
except ImportError as problem:
    raise ImportError(
        f"addnorm.rewiring.removal.hugging_face requires transformers ({problem}); run pip install "
        "'transformers[torch]'"
    ) from None


class NormRemovalCallback(TrainerCallback):
    """Removes the norms of the trained model; arguments as of `NormRemoval`."""

    def __init__(self, *, start: int, every: int, keep: int = 0) -> None:
        self.options = {"start": start, "every": every, "keep": keep}
        self.removal: NormRemoval | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Find the norms, after a checkpoint those that are left."""
        self.removal = NormRemoval(model, **self.options)
        self.removal.update(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove the norms that are due."""
        if self.removal is not None:
            self.removal.update(state.global_step)
