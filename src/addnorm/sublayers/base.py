"""What the usual sub-layers tell a stack.

A plain module from tensor to tensor need not tell anything.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.plan import Plugs, Shape


class Sublayer(nn.Module, ABC):
    """A sub-layer that knows its widths and the roles of its weights, and has places for a wiring's
    plugs.

    It knows nothing of norms, skips or adds. Its `forward` takes the tensor it reads and, by name,
    what it wants of the stack's context: mask, memory, memory_mask, cache, plugs, ... The stack
    passes what is declared and nothing else.
    """

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Widths inside, for norms and scales that a wiring puts there."""

    @abstractmethod
    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight with its role: query key value out ffn_in ffn_out bias."""

    def find_plug_conflict(self, plugs: Plugs) -> str | None:
        """Why these plugs cannot be obeyed; None if they can."""
        return None

    def reset_parameters(self) -> None:
        """Put parameters that have no role (scales, memory vectors) at their start values."""


class Tap(nn.Module):
    """A place without parameters that hands on what it gets.

    Hook it with `register_forward_hook`.
    """

    @property
    def has_hooks(self) -> bool:
        """Whether somebody looks."""
        return bool(self._forward_hooks or self._forward_pre_hooks)

    def forward(self, x: Tensor) -> Tensor:
        """x"""
        return x


def init_normal_(weight: Tensor, std: float) -> None:
    """Fill a weight from N(0, std^2); on the meta device there is nothing to fill.

    There torch would take more than a second to load what pretends to draw.
    """
    if not weight.is_meta:
        nn.init.normal_(weight, std=std)


def check_positive_int(name: str, value: object, *, min_value: int = 1) -> None:
    """Refuse what is not a whole number from `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < min_value:
        raise UserError(f"{name} must be a whole number from {min_value}, got {value!r}")


def check_dropout(name: str, value: float) -> None:
    """Refuse a dropout that is not a share from 0 to below 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise UserError(f"{name} is a share from 0 to below 1, got {value!r}")


def check_bool(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise UserError(f"{name} is True or False, got {value!r}")


def check_input(name: str, x: Tensor, dim: int) -> None:
    """Refuse a sequence that is not floating point of shape (B, L, dim)."""
    if x.ndim != 3 or x.shape[-1] != dim or not x.is_floating_point():
        raise UserError(
            f"{name} must be floating point of shape (B, L, {dim}), got {x.dtype} of shape "
            f"{tuple(x.shape)}"
        )
