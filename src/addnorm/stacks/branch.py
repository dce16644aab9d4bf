"""Branch of a site: the sub-layer with its arguments and the dropout after it, as a wiring calls
it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from addnorm.core.errors import UserError
from addnorm.kernels.hook_detection import has_hooks
from addnorm.sublayers.base import Tap
from addnorm.wirings.base import DropoutBranch


@dataclass  # neither frozen nor with slots: torch.compile before 2.7 reads no such objects
class SublayerBranch(DropoutBranch):
    """branch = dropout(multiplier * sublayer(h))

    `apply_sublayer` and `rate` give access to the two parts, for a wiring that fuses dropout, add
    and norm.
    """

    sublayer: nn.Module
    kwargs: dict[str, Any]
    """Arguments of the sub-layer besides `h`."""
    dropout: nn.Dropout
    get_name: Callable[[], str]
    """Returns the name of the sub-layer for error messages."""
    recompute: bool = False
    """Whether to recompute the sub-layer in the backward instead of saving its activations."""
    multiplier: float = 1.0
    """Factor on the output of the sub-layer, of the stack's scale."""

    @property
    def rate(self) -> float:
        """Dropout rate of the branch; 0 in evaluation."""
        return self.dropout.p if self.dropout.training else 0.0

    @property
    def has_hooks(self) -> bool:
        """Whether the dropout has hooks."""
        return has_hooks(self.dropout)

    def apply_sublayer(self, h: Tensor) -> Tensor:
        """Return the branch without dropout; raise a UserError if its shape is not that of h."""
        branch = self._call_sublayer(h)
        return branch if self.multiplier == 1 else self.multiplier * branch

    def call_unscaled(self, h: Tensor) -> Tensor:
        """Return the branch without the factor."""
        branch = self._call_sublayer(h)
        return self.dropout(branch) if self.rate else branch

    def _call_sublayer(self, h: Tensor) -> Tensor:
        if self.recompute and torch.is_grad_enabled() and "cache" not in self.kwargs:
            branch = checkpoint(self.sublayer, h, use_reentrant=False, **self.kwargs)
        else:
            branch = self.sublayer(h, **self.kwargs)
        if not isinstance(branch, Tensor) or branch.shape != h.shape:
            got = tuple(branch.shape) if isinstance(branch, Tensor) else type(branch).__name__
            raise UserError(
                f"{self.get_name()}: expected an output of the input's shape {tuple(h.shape)}, got "
                f"{got}"
            )
        return branch

    def __call__(self, h: Tensor) -> Tensor:
        branch = self.apply_sublayer(h)
        return self.dropout(branch) if self.rate else branch


@dataclass
class TappedBranch:
    """Branch between two taps; a hook of a tap may replace the tensor."""

    branch: SublayerBranch
    before: Tap
    after: Tap

    def __call__(self, h: Tensor) -> Tensor:
        # A tap sees the branch before the factor of a scale, as the sub-layer returns it.
        y: Tensor = self.after(self.branch.call_unscaled(self.before(h)))
        return y if self.branch.multiplier == 1 else self.branch.multiplier * y
