"""Arguments that the `forward` of a sub-layer declares.

A stack is called with a context (mask, memory, cache, ...) and passes to each sub-layer only the
arguments that its `forward` names.
"""

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn

from addnorm.core.errors import UserError
from addnorm.sublayers.base import Sublayer


@dataclass(frozen=True)
class ForwardSignature:
    """Parameters of a sub-layer's forward, without the input tensor.

    >>> class Mixer(nn.Module):
    ...     def forward(self, x, memory, mask=None): ...
    >>> ForwardSignature.from_module(Mixer())
    ForwardSignature(names=('memory', 'mask'), required=('memory',), accepts_any=False)
    """

    names: tuple[str, ...]
    """Names of all parameters after the input tensor."""
    required: tuple[str, ...]
    """Names of parameters without a default."""
    accepts_any: bool
    """Whether it takes **kwargs: it then receives the whole context."""

    @classmethod
    def from_module(cls, module: nn.Module) -> "ForwardSignature":
        """Read the signature of a module; torch.compile wrappers are looked through."""
        parameters = list(inspect.signature(unwrap_compiled(module).forward).parameters.values())
        if not parameters:
            raise UserError(
                f"{type(module).__name__}.forward: expected a parameter for the input tensor, got "
                "none"
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
        """Return the part of the context that the sub-layer takes; None counts as absent."""
        return {
            name: value for name, value in context.items() if value is not None and name in self
        }


def unwrap_compiled(module: nn.Module) -> nn.Module:
    """Return the module inside a torch.compile wrapper; other modules unchanged."""
    return dict(module.named_children()).get("_orig_mod", module)


def as_sublayer(module: nn.Module) -> Sublayer | None:
    """Return the module if it is a `Sublayer`, compiled or not; None otherwise."""
    inside = unwrap_compiled(module)
    return inside if isinstance(inside, Sublayer) else None
