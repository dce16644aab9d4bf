"""Branch: the sub-layer of a site as a wiring calls it, with the dropout behind it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from addnorm.core.errors import UserError
from addnorm.kernels.hooks import has_hooks
from addnorm.sublayers.base import Tap
from addnorm.wirings.base import DropoutBranch


@dataclass(frozen=True, slots=True)
class SublayerBranch(DropoutBranch):
    """branch = dropout(sublayer(h))

    `raw` and `rate` tell the two apart, for a wiring that drops, adds and normalizes in one go.
    """

    sublayer: nn.Module
    kwargs: dict[str, Any]
    """What the sub-layer gets besides `h`."""
    dropout: nn.Dropout
    get_name: Callable[[], str]
    """How messages call the sub-layer."""
    recompute: bool = False

    @property
    def rate(self) -> float:
        """Share of the branch that is dropped now."""
        return self.dropout.p if self.dropout.training else 0.0

    @property
    def has_hooks(self) -> bool:
        """Whether somebody looks at the dropout."""
        return has_hooks(self.dropout)

    def apply_sublayer(self, h: Tensor) -> Tensor:
        """What the sub-layer makes of `h`."""
        if self.recompute and torch.is_grad_enabled() and "cache" not in self.kwargs:
            branch = checkpoint(self.sublayer, h, use_reentrant=False, **self.kwargs)
        else:
            branch = self.sublayer(h, **self.kwargs)
        if not isinstance(branch, Tensor) or branch.shape != h.shape:
            got = tuple(branch.shape) if isinstance(branch, Tensor) else type(branch).__name__
            raise UserError(
                f"{self.get_name()} returned {got}; a sub-layer returns a tensor of its "
                f"input's shape, {tuple(h.shape)}"
            )
        return branch

    def __call__(self, h: Tensor) -> Tensor:
        """The formula."""
        branch = self.apply_sublayer(h)
        return self.dropout(branch) if self.rate else branch


@dataclass(frozen=True, slots=True)
class TappedBranch:
    """A branch between two taps."""

    branch: SublayerBranch
    before: Tap
    after: Tap

    def __call__(self, h: Tensor) -> Tensor:
        """The same; what a hook returns is used."""
        seen: Tensor = self.after(self.branch(self.before(h)))
        return seen
