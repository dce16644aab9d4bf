"""Forms of an addnorm model in which all that writes to the stream is a plain weight.

A tied output projection gets a table of its own, sinusoids become a stored table, and the gains of
LayerScale go into the output matrices. Nothing changes the function.
"""

import torch
from torch import Tensor

from addnorm.exporters.folding import laws
from addnorm.models import Classifier, Model
from addnorm.rewiring.core_models import get_state, named_stacks, rebuild, stack_prefix
from addnorm.sublayers.positions import SinusoidalPositions
from addnorm.wirings.layer_scale import LayerScale


def prepare_centering(core: Model, max_length: int) -> tuple[Model, list[str]]:
    """Return such a model in float64, and notes on what was done; no notes if nothing was.

    Args:
        core: model in float64, which is not changed
        max_length: positions of the table that replaces sinusoids
    """
    tensors, notes = get_state(core), []
    fields: dict[str, object] = {}
    config = core.config
    if config.tied and not isinstance(core, Classifier):
        name = next(
            each for each in tensors if each.endswith("embed.table") and "source" not in each
        )
        tensors[name.replace("embed.table", "head.table")] = tensors[name]
        fields["tied"] = False
        notes.append("the output projection was tied; it keeps the old table, now its own")
    for name, stack in named_stacks(core).items():
        prefix = stack_prefix(core, name)
        if isinstance(stack.positions, SinusoidalPositions):
            tensors[f"{prefix}positions.table"] = _sinusoids(stack.positions, max_length)
            fields["positions"] = f"learned(length={max_length})"
            text = f"sinusoids became a stored table of {max_length} positions (max_length)"
            notes += [text] if text not in notes else []
        if isinstance(stack.wiring, LayerScale):
            _fold_gains(stack, prefix, tensors)
            notes.append("gamma of layer_scale moved into the output matrices, and is 1 now")
    return (rebuild(core, tensors, **fields), notes) if notes else (core, [])


def _sinusoids(positions: SinusoidalPositions, length: int) -> Tensor:
    zeros = torch.zeros(1, length, positions.dim, dtype=torch.float64)
    return positions.add(zeros, torch.arange(length))[0]


def _fold_gains(stack: object, prefix: str, tensors: dict[str, Tensor]) -> None:
    wiring, sublayers = stack.wiring, stack.sublayers  # type: ignore[attr-defined]
    gamma = tensors[f"{prefix}wiring.gamma"]
    names = {id(weight): name for name, weight in stack.named_parameters()}  # type: ignore[attr-defined]
    for site, sublayer in zip(wiring.plan.sites, sublayers, strict=True):
        linear = laws.writer(sublayer)
        for weight in (linear.weight, linear.bias):
            if weight is not None:
                name = prefix + names[id(weight)]
                gain = gamma[site.index]
                tensors[name] = tensors[name] * (gain[:, None] if weight.ndim == 2 else gain)
    tensors[f"{prefix}wiring.gamma"] = torch.ones_like(gamma)
