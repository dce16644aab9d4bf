"""Optimizers: those of torch, chosen by call string, with the parameter groups a model wants.

Matrices and tables of embeddings decay, as is usual with torch; norms, scales, gates, biases and
whatever else `model.no_decay()` names do not.
"""

import math
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.core.registry import Registry
from addnorm.models.base import WiredModule

Beta = Annotated[float, Field(ge=0, lt=1)]
Groups = list[dict[str, Any]]
NamedParameters = list[tuple[str, nn.Parameter]]

FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Devices on which torch has Adam in one kernel."""

registry: "Registry[Optimizer]" = Registry("optimizer")
register = registry.register


def make_optimizer(
    call: str | Call, model: WiredModule, *, lr: float, weight_decay: float = 0.0
) -> "Optimizer":
    """Build the optimizer a call string names, for all parameters of a model that want a gradient.

    model: itself, not what DDP or torch.compile made of it, since parameters are told by name; with
    `fully_shard` after sharding.
    """
    if not (isinstance(lr, int | float) and 0 < lr < math.inf):
        raise UserError(f"lr must be a positive number, got {lr!r}")
    if not (isinstance(weight_decay, int | float) and 0 <= weight_decay < math.inf):
        raise UserError(f"weight_decay must be a number from 0, got {weight_decay!r}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("no parameter of this model wants a gradient; there is nothing to train")
    return registry.make(call, model, float(lr), float(weight_decay))


class Optimizer:
    """One or several optimizers of torch that step together; one thing to a trainer.

    Save and load its state with `get_optimizer_state_dict` and `set_optimizer_state_dict` of
    torch.distributed.checkpoint.state_dict, to which `parts` goes. The learning rate is no state:
    `set_lr` computes it anew at every step.
    """

    def __init__(self, lr: float, optimizers: list[torch.optim.Optimizer]) -> None:
        self.lr = lr
        """The peak learning rate."""
        self.optimizers = optimizers
        """The optimizers of torch."""

    def set_lr(self, factor: float) -> float:
        """Set the learning rate to a share of the peak; that learning rate."""
        lr = self.lr * factor
        for part in self.optimizers:
            for group in part.param_groups:
                group["lr"] = lr
        return lr

    def step(self) -> None:
        """Move the parameters along their gradients."""
        for part in self.optimizers:
            part.step()

    @property
    def has_state(self) -> bool:
        """Whether it remembers anything. Asked first, since torch's `get_optimizer_state_dict`
        makes a step of an optimizer that does not.
        """
        return any(part.state for part in self.optimizers)

    def clear_state(self) -> None:
        """As if no step had been made."""
        for part in self.optimizers:
            part.state.clear()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.optimizers:
            part.zero_grad()


def is_sharded(model: WiredModule) -> bool:
    """Whether `fully_shard` has spread the parameters over processes."""
    if not torch.distributed.is_initialized():
        return False
    from torch.distributed.tensor import DTensor  # slow to import, and of no use to most

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def trainable_parameters(model: WiredModule) -> NamedParameters:
    """Parameters that want a gradient, with their names."""
    return [(name, each) for name, each in model.named_parameters() if each.requires_grad]


def decay_groups(
    named_parameters: NamedParameters, model: WiredModule, weight_decay: float
) -> Groups:
    """What decays, and what does not; the one or the other may be absent."""
    spared = model.no_decay()
    decayed = [parameter for name, parameter in named_parameters if name not in spared]
    others = [parameter for name, parameter in named_parameters if name in spared]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_fused_adamw(
    groups: Groups, lr: float, betas: tuple[float, float], eps: float
) -> torch.optim.AdamW:
    """AdamW of torch, in one kernel where there is one."""
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=select_fused(groups))


def select_fused(groups: Groups) -> bool | None:
    """One kernel for all, several times as fast; None leaves the choice to torch."""
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    return True if devices <= set(FUSED_DEVICES) else None
