"""What a sub-layer wants besides the tensor it reads: its `forward` says so by naming it."""

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn

from addnorm.core.errors import UserError
from addnorm.sublayers.base import Sublayer


@dataclass(frozen=True)
class ForwardSignature:
    """The names in a sub-layer's forward.

    >>> class Gossip(nn.Module):
    ...     def forward(self, x, memory, mask=None): ...
    >>> Wants.of(Gossip())
    Wants(names=('memory', 'mask'), needed=('memory',), everything=False)
    """

    names: tuple[str, ...]
    """All it names, beyond the tensor it reads."""
    required: tuple[str, ...]
    """Those without a default."""
    accepts_any: bool
    """Whether it takes any keyword: then it gets all that the stack is called with."""

    @classmethod
    def from_module(cls, module: nn.Module) -> "ForwardSignature":
        """Read from the signature."""
        parameters = list(inspect.signature(unwrap_compiled(module).forward).parameters.values())
        if not parameters:
            raise UserError(
                f"the forward of {type(module).__name__} takes nothing; a sub-layer takes the "
                "tensor it reads"
            )
        named = [
            parameter
            for parameter in parameters[1:]
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]
        return cls(
            tuple(parameter.name for parameter in named),
            tuple(parameter.name for parameter in named if parameter.default is parameter.empty),
            any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters),
        )

    def __contains__(self, name: str) -> bool:
        return self.accepts_any or name in self.names

    def select(self, context: dict[str, Any]) -> dict[str, Any]:
        """What of the context it gets; what is None is not there."""
        return {
            name: value for name, value in context.items() if value is not None and name in self
        }


def unwrap_compiled(module: nn.Module) -> nn.Module:
    """The module inside, where torch.compile has wrapped it and hides what it declares."""
    return dict(module.named_children()).get("_orig_mod", module)


def as_sublayer(module: nn.Module) -> Sublayer | None:
    """The module as one that knows its widths and roles; None for a plain one."""
    inside = unwrap_compiled(module)
    return inside if isinstance(inside, Sublayer) else None
