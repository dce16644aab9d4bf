"""Models whose sites are known: addnorm models, alone or inside a converted Hugging Face model."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.interop import HFModel
from addnorm.measure.sites import find_stacks
from addnorm.models import Config, Model, PrefixLM, build
from addnorm.stacks.transformer import TransformerStack


def get_core(module: nn.Module) -> Model | None:
    """Return the addnorm model of a module; None for other modules."""
    if isinstance(module, HFModel):
        return module.model
    return module if isinstance(module, Model) else None


def with_core(module: nn.Module, core: Model) -> nn.Module:
    """Return a module with another addnorm model inside."""
    if isinstance(module, HFModel):
        other = HFModel(core, module.variant, module.numbering, module.origin, module.notes)
        other.training = module.training
        return other
    return core


def require_core(module: nn.Module, option: str) -> Model:
    """Return the addnorm model of a module; raise `UserError` if there is none."""
    core = get_core(module)
    if core is None:
        raise UserError(
            f"{option}: expected a model whose sites are known, of addnorm.build or from_hf, got "
            f"{type(module).__name__}; only norm can be changed in any module"
        )
    return core


def named_stacks(core: Model) -> dict[str, TransformerStack]:
    """Return the stacks of a model by their names in its state, encoder first."""
    stacks = find_stacks(core).items()
    return {name: stack for name, stack in stacks if isinstance(stack, TransformerStack)}


def stack_prefix(core: Model, name: str) -> str:
    """Return the prefix of a stack's tensors in the state of its model."""
    path = next(path for path, each in core.named_modules() if each is named_stacks(core)[name])
    return f"{path}."


def get_state(core: Model) -> dict[str, Tensor]:
    """Return the tensors of a model without arrangements."""
    return {name: value for name, value in core.state_dict().items() if not is_arrangement(name)}


def is_arrangement(name: str) -> bool:
    """Return whether a name in a state is that of an arrangement, which is no tensor of weights."""
    return name.endswith("_extra_state")


def rebuild(core: Model, tensors: dict[str, Tensor], **changes: Any) -> Model:
    """Return a model of a changed config with given tensors, in float64.

    Args:
        core: model of the old config
        tensors: all tensors of the new model by name
        **changes: fields of the config
    """
    result = build(core.config.replace(**changes), device="meta")
    expected = {name for name in result.state_dict() if not is_arrangement(name)}
    missing, unknown = sorted(expected - set(tensors)), sorted(set(tensors) - expected)
    assert not missing and not unknown, (missing, unknown)
    copies = {name: value.detach().double().clone() for name, value in tensors.items()}
    for name, value in result.state_dict().items():
        if name in copies and not value.is_floating_point():
            copies[name] = tensors[name].detach().clone()
    with torch.no_grad():
        result.load_state_dict(copies, strict=False, assign=True)
    for parameter in result.parameters():
        parameter.requires_grad_(True)
    for ours, theirs in zip(result.stacks, core.stacks, strict=True):
        ours.recompute, ours.stream = theirs.recompute, None
        ours.packed = theirs.packed
    return result.train(core.training)


def start_tensors(core: Model, **changes: Any) -> tuple[Model, dict[str, Tensor]]:
    """Return a new model of a changed config at its start values, and its tensors."""
    with torch.random.fork_rng():
        model = build(core.config.replace(**changes), seed=0).double()
    return model, get_state(model)


def site_numbers(name: str) -> list[tuple[int, int, int]]:
    """Return (number, start, end) of the numbers between dots in the name of a tensor.

    >>> site_numbers("wiring.norms.12.weight")
    [(12, 13, 15)]
    """
    return [
        (int(match[0]), match.start(), match.end())
        for match in re.finditer(r"(?<=\.)\d+(?=\.|$)", name)
    ]


def config_of(module: nn.Module) -> Config | None:
    """Return the config of the addnorm model of a module, if it has one."""
    core = get_core(module)
    return None if core is None else core.config


def inner_prefix(core: Model) -> str:
    """Return the prefix of a model's parts in its state: that of a prefix model's inner model."""
    return "model." if isinstance(core, PrefixLM) else ""
