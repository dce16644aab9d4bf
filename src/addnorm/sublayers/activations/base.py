"""Activations of the feed-forward, chosen by call string: functions, and modules with parameters.

A plain activation maps up(x); a gated one multiplies up(x) by a function of gate(x).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.registry import Registry

registry: "Registry[Activation]" = Registry("activation")
register = registry.register


class Activation(nn.Module, ABC):
    """Activation of a feed-forward of `hidden` features."""

    is_gated: ClassVar[bool] = False
    """Whether it multiplies a value by a function of a gate."""

    def __init__(self, hidden: int) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, value: Tensor, gate: Tensor | None = None) -> Tensor:
        """Return what the last matrix reads, (B, L, hidden); `gate` if the activation is gated."""

    def reset_parameters(self) -> None:
        """Reset parameters to their start values."""


registry.base = Activation


class FunctionActivation(Activation):
    """Activation without parameters: one function of up(x), or of the gate."""

    function: ClassVar[Callable[[Tensor], Tensor]]

    def forward(self, value: Tensor, gate: Tensor | None = None) -> Tensor:
        function = type(self).function
        return function(value) if gate is None else value * function(gate)


def make_activation(call: object, hidden: int) -> Activation:
    """Build the activation that a call string names, for `hidden` features."""
    return registry.make(_check_call(call), hidden)


def resolve_activation(call: object) -> str:
    """Return the canonical call string of an activation."""
    return str(registry.resolve(_check_call(call)))


def is_gated(call: object) -> bool:
    """Return whether a call string names a gated activation."""
    return registry.member(registry.resolve(_check_call(call)).name).is_gated


def _check_call(call: object) -> str:
    if not isinstance(call, str):
        raise UserError(
            f"activation: expected a call string such as 'relu', got {type(call).__name__}"
        )
    return call
