"""Branch: the sub-layer of a site as a wiring calls it, with the dropout behind it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from addnorm.core.errors import UserError
from addnorm.kernels.hooks import watched
from addnorm.sublayers.base import Tap
from addnorm.wirings.base import Dropping


@dataclass(frozen=True, slots=True)
class SiteBranch(Dropping):
    """branch = dropout(sublayer(h))

    `raw` and `rate` tell the two apart, for a wiring that drops, adds and normalizes in one go.
    """

    sublayer: nn.Module
    given: dict[str, Any]
    """What the sub-layer gets besides `h`."""
    dropout: nn.Dropout
    name: Callable[[], str]
    """How messages call the sub-layer."""
    recompute: bool = False

    @property
    def rate(self) -> float:
        """Share of the branch that is dropped now."""
        return self.dropout.p if self.dropout.training else 0.0

    @property
    def watched(self) -> bool:
        """Whether somebody looks at the dropout."""
        return watched(self.dropout)

    def raw(self, h: Tensor) -> Tensor:
        """What the sub-layer makes of `h`."""
        if self.recompute and torch.is_grad_enabled() and "cache" not in self.given:
            branch = checkpoint(self.sublayer, h, use_reentrant=False, **self.given)
        else:
            branch = self.sublayer(h, **self.given)
        if not isinstance(branch, Tensor) or branch.shape != h.shape:
            got = tuple(branch.shape) if isinstance(branch, Tensor) else type(branch).__name__
            raise UserError(
                f"{self.name()} returned {got}; a sub-layer returns a tensor of its "
                f"input's shape, {tuple(h.shape)}"
            )
        return branch

    def __call__(self, h: Tensor) -> Tensor:
        """The formula."""
        branch = self.raw(h)
        return self.dropout(branch) if self.rate else branch


@dataclass(frozen=True, slots=True)
class Watched:
    """A branch between two taps."""

    branch: SiteBranch
    before: Tap
    after: Tap

    def __call__(self, h: Tensor) -> Tensor:
        """The same; what a hook returns is used."""
        seen: Tensor = self.after(self.branch(self.before(h)))
        return seen
