"""Interface between sub-layers and a stack.

A sub-layer may be any module from tensor to tensor. One that derives from `Sublayer` also describes
its widths and the roles of its weights, which wirings and initialization schemes use.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.plan import Plugs, Shape
from addnorm.core.registry import MAX_FACTOR
from addnorm.core.validation import MAX_SIZE, check_at_most
from addnorm.kernels.inputs import check_tensor, describe_value


class Sublayer(nn.Module, ABC):
    """Base class of sub-layers that describe their widths and weights and accept plugs.

    `forward` takes the input tensor and, by keyword, the parts of the stack's context that it uses:
    mask, memory, memory_mask, cache, plugs, ... The stack passes only the arguments that `forward`
    declares.
    """

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Inner widths, for norms and scales that a wiring plugs in."""

    @abstractmethod
    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight with its role: query, key, value, out, ffn_in, ffn_out or bias."""

    def init_gain(self, role: str) -> float:
        """Return the factor on the initial weights of a role that options of the sub-layer need."""
        return 1.0

    def find_plug_conflict(self, plugs: Plugs) -> str | None:
        """Return why these plugs cannot be applied; None if they can."""
        return None

    def reset_parameters(self) -> None:
        """Reset parameters without a role (scales, persistent vectors) to their start values."""


class Tap(nn.Module):
    """Identity module: a named point where `register_forward_hook` observes a tensor."""

    @property
    def has_hooks(self) -> bool:
        """Whether a hook is registered."""
        return bool(self._forward_hooks or self._forward_pre_hooks)

    def forward(self, x: Tensor) -> Tensor:
        return x


def init_normal_(weight: Tensor, std: float) -> None:
    """Fill a weight from N(0, std^2), in place.

    A weight on the meta device is skipped: torch would import its compiler to draw for it.
    """
    if not weight.is_meta:
        nn.init.normal_(weight, std=std)


def check_positive_int(
    name: str, value: object, *, min_value: int = 1, max_value: int = MAX_SIZE
) -> None:
    """Raise a UserError unless the value is an integer from `min_value` to `max_value`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < min_value:
        raise UserError(f"{name}: expected an integer of at least {min_value}, got {value!r}")
    check_at_most(name, value, max_value)


def check_positive_number(name: str, value: object) -> None:
    """Raise a UserError unless the value is a positive number, at most `MAX_FACTOR`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= MAX_FACTOR:  # type: ignore[operator]
        raise UserError(
            f"{name}: expected a positive number, at most {MAX_FACTOR:g}, got {value!r}"
        )


def check_dropout(name: str, value: float) -> None:
    """Raise a UserError unless the value is a number from 0 to below 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise UserError(f"{name}: expected a number from 0 to below 1, got {value!r}")


def check_bool(name: str, value: object) -> None:
    """Raise a UserError unless the value is True or False."""
    if not isinstance(value, bool):
        raise UserError(f"{name}: expected True or False, got {value!r}")


def check_input(name: str, x: Tensor, dim: int) -> None:
    """Raise a UserError unless x is floating point of shape (B, L, dim)."""
    expected = f"floating point of shape (B, L, {dim})"
    check_tensor(name, x, expected)
    if x.ndim != 3 or x.shape[-1] != dim or not x.is_floating_point():
        raise UserError(f"{name}: expected {expected}, got {describe_value(x)}")
