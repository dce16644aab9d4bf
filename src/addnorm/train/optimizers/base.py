"""Optimizer registry: torch optimizers with the parameter groups of a model.

Weight decay applies to matrices and embedding tables. Parameters in `model.no_decay()` (norms,
scales, gates, biases) do not decay.

To add an optimizer: a subclass of `Optimizer` in a file of this folder with `@register(Card(...))`,
and an import in `addnorm/train/__init__.py`.
"""

import math
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.core.registry import Registry
from addnorm.measure.sharded_norms import find_mesh, local_shard
from addnorm.measure.sharded_norms import is_sharded as is_sharded_tensor
from addnorm.models.base import WiredModule
from addnorm.models.scale_groups import ParameterFactors
from addnorm.scales.base import Rule

Beta = Annotated[float, Field(ge=0, lt=1)]
Groups = list[dict[str, Any]]
NamedParameters = list[tuple[str, nn.Parameter]]

FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Device types with a fused Adam in torch."""

registry: "Registry[Optimizer]" = Registry("optimizer")
register = registry.register


def make_optimizer(
    call: str | Call, model: WiredModule, *, lr: float, weight_decay: float = 0.0
) -> "Optimizer":
    """Build the optimizer that a call string names, for the trainable parameters of a model.

    Args:
        call: name with options, such as `adamw(beta2=0.98)`
        model: the model itself, because parameters are grouped by name; not a DDP wrapper. With
            FSDP, call this after `fully_shard`.
        lr: peak learning rate
        weight_decay: decay of matrices and embedding tables
    """
    if not (isinstance(lr, int | float) and 0 < lr < math.inf):
        raise UserError(f"lr: expected a positive number, got {lr!r}")
    if not (isinstance(weight_decay, int | float) and 0 <= weight_decay < math.inf):
        raise UserError(f"weight_decay: expected a number of at least 0, got {weight_decay!r}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("model: expected a parameter with requires_grad=True, got none")
    return registry.make(call, model, float(lr), float(weight_decay))


class Optimizer:
    """One or more torch optimizers that step together.

    To save and load the state, pass `optimizers` to `get_optimizer_state_dict` and
    `set_optimizer_state_dict` of `torch.distributed.checkpoint.state_dict`. The learning rate is
    not part of the state: the trainer sets it before each step.
    """

    def __init__(self, lr: float, optimizers: list[torch.optim.Optimizer]) -> None:
        self.lr = lr
        """Peak learning rate."""
        self.optimizers = optimizers

    def set_lr(self, factor: float) -> float:
        """Set the learning rate to `factor` times the peak; return it.

        Groups of a model with a scale have it times their own factor.
        """
        lr = self.lr * factor
        for part in self.optimizers:
            for group in part.param_groups:
                group["lr"] = lr * group.get("lr_factor", 1.0)
        return lr

    def step(self, *, skip: Tensor | None = None) -> None:
        """Update the parameters.

        Args:
            skip: 1.0 on the device to leave the parameters as they are, 0.0 to update them, without
                waiting for the value; None to update
        """
        for part in self.optimizers:
            if skip is None or _is_fused_adam(part):
                part.found_inf = skip  # type: ignore[attr-defined]  # as torch.amp.GradScaler does
                part.step()
            else:
                _step_or_restore(part, skip)

    @property
    def has_state(self) -> bool:
        """Whether a step was made since the start or the last `clear_state`.

        Check this before `get_optimizer_state_dict`, which otherwise makes a step to create state.
        """
        return any(part.state for part in self.optimizers)

    def clear_state(self) -> None:
        """Discard the state of all parameters."""
        for part in self.optimizers:
            part.state.clear()

    def zero_grad(self) -> None:
        """Discard the gradients."""
        for part in self.optimizers:
            part.zero_grad()


registry.base = Optimizer


def _is_fused_adam(optimizer: torch.optim.Optimizer) -> bool:
    return isinstance(optimizer, torch.optim.Adam) and bool(optimizer.defaults.get("fused"))


@torch.no_grad()
def _step_or_restore(optimizer: torch.optim.Optimizer, skip: Tensor) -> None:
    """Update the parameters, and put the old ones back where `skip` is 1.

    The state is not put back: a run whose step was skipped ends, and its state is never saved.
    """
    groups = optimizer.param_groups
    parameters = [each for group in groups for each in group["params"] if each.grad is not None]
    shards = [local_shard(each) for each in parameters]
    before = [each.clone() for each in shards]
    optimizer.step()
    for shard, old in zip(shards, before, strict=True):
        shard.copy_(torch.where(skip.bool(), old, shard))


def is_sharded(model: WiredModule) -> bool:
    """Return whether FSDP has sharded the parameters."""
    return any(is_sharded_tensor(parameter) for parameter in model.parameters())


def trainable_parameters(model: WiredModule) -> NamedParameters:
    """Return the names and parameters that require a gradient."""
    return [(name, each) for name, each in model.named_parameters() if each.requires_grad]


def decay_groups(
    named_parameters: NamedParameters,
    model: WiredModule,
    weight_decay: float,
    *,
    rule: Rule = "adam",
    eps: float | None = None,
) -> Groups:
    """Return groups with weight decay, then those without; empty groups are omitted.

    The groups of a model with a scale also have `lr_factor`, which `Optimizer.set_lr` multiplies
    by, and `eps` if it is given.

    Args:
        named_parameters: parameters of the optimizer
        model: the model
        weight_decay: decay of matrices and tables
        rule: kind of the optimizer, for the scale
        eps: epsilon of Adam; None for an optimizer without one
    """
    no_decay = model.no_decay()
    factors = ParameterFactors(model)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for decays in (True, False):
        for name, parameter in named_parameters:
            if decays == (name in no_decay):
                continue
            lr_factor, decay_factor, eps_factor = factors.find(parameter, rule)
            group: dict[str, Any] = {"weight_decay": weight_decay * decay_factor if decays else 0.0}
            if factors.rule is not None:
                group["lr_factor"] = lr_factor
                if eps is not None:
                    group["eps"] = eps * eps_factor
            # torch updates the weights of a group together, so they must be sharded alike.
            key = (decays, find_mesh(parameter), *group.values())
            groups.setdefault(key, {"params": [], **group})["params"].append(parameter)
    return list(groups.values())


def build_fused_adamw(
    groups: Groups, lr: float, betas: tuple[float, float], eps: float
) -> torch.optim.AdamW:
    """Return torch's AdamW, fused where torch supports it."""
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=select_fused(groups))


def select_fused(groups: Groups) -> bool | None:
    """Return True if torch has a fused kernel for all devices; None leaves the choice to torch."""
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    return True if devices <= set(FUSED_DEVICES) else None
