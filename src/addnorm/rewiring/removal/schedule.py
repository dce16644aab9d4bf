"""Schedule that removes the norms of a model during training.

    model, report = addnorm.rewire(model, norm="constant_std", calibrate=batch)
    removal = NormRemoval(model, start=20, every=2)
    for step, batch in enumerate(batches, 1):
        ...
        optimizer.step()
        removal.update(step)

Heimersheim, You can remove GPT2's LayerNorm by fine-tuning, 2024, arXiv 2409.13710.
"""

from torch import nn

from addnorm.core.errors import UserError
from addnorm.norms.constant_std import ConstantStd


class NormRemoval:
    """Makes the deviation of one norm after the other constant, from the last to the first.

    The state is in buffers of the norms, so that checkpoints hold it and a resumed run goes on.

    Args:
        model: model with norms of `constant_std`
        start: step after which the last norm is removed
        every: steps between two norms
        keep: number of norms, counted from the first, that stay
    """

    # NOTE[DIFF]: the paper removes the norms before all feed-forwards first, from the first layer
    # on, and splits those before attention into queries, keys and values; here the order is that
    # of the forward pass, from its end.
    def __init__(self, model: nn.Module, *, start: int, every: int, keep: int = 0) -> None:
        for name, value, least in (("start", start, 0), ("every", every, 1), ("keep", keep, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"{name}: expected a whole number from {least}, got {value!r}")
        norms = [module for module in model.modules() if isinstance(module, ConstantStd)]
        # Modules may be registered in another order than that of the forward pass, which
        # `addnorm.rewire` has recorded; sorting keeps the order of equal places.
        norms.sort(key=lambda norm: int(norm.place))
        if not norms:
            raise UserError(
                "model: expected norms of constant_std, got none; call addnorm.rewire(model, "
                'norm="constant_std", ...) first'
            )
        self.norms = norms[::-1][: len(norms) - keep]
        self.start, self.every = start, every

    @property
    def num_removed(self) -> int:
        """Number of norms that are constant by now."""
        return sum(bool(norm.removed) for norm in self.norms)

    @property
    def last_step(self) -> int:
        """Step after which all norms are removed."""
        return self.start + self.every * (len(self.norms) - 1)

    def update(self, step: int) -> None:
        """Remove the norms that are due after a step; steps are counted from 1."""
        due = (step - self.start) // self.every + 1 if step >= self.start else 0
        for norm in self.norms[: max(due, 0)]:
            if not bool(norm.removed):
                norm.remove()
