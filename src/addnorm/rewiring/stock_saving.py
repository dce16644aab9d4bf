"""`save_pretrained` of classes of transformers whose norms were changed in place.

`from_pretrained` builds the class with the norms that it always has. It would give another model
with the weights of, say, DyT, and say nothing. Where the outputs would differ, `save_pretrained`
warns and marks the config, and `from_hf` refuses a folder with that mark.
"""

import copy
import functools
import warnings
from typing import Any

import torch
from torch import nn

from addnorm.doctor.trace.errors import USER_CODE_ERRORS
from addnorm.interop.config_reader import REWIRED_FIELD
from addnorm.rewiring.batches import Batch
from addnorm.rewiring.losses import evaluation, list_outputs
from addnorm.rewiring.proof import compare_outputs

TOLERANCE = 1e-3
"""Largest difference of outputs, relative to the largest one, of a class that fits."""


def is_pretrained_model(model: nn.Module) -> bool:
    """Return whether a model is a `PreTrainedModel` of transformers, which need not be imported."""
    bases = type(model).__mro__
    return any(
        base.__name__ == "PreTrainedModel" and base.__module__.startswith("transformers.")
        for base in bases
    )


def warn_on_save(model: nn.Module, norm: str, batch: Batch) -> None:
    """Make `save_pretrained` of a rewired model warn if its class does not fit its weights.

    Args:
        model: rewired model, which gets its own `save_pretrained`
        norm: call string of the new norms
        batch: inputs on which the outputs are compared
    """
    save: Any = functools.partial(_save, model, norm, batch)
    model.save_pretrained = save


def _save(model: Any, norm: str, batch: Batch, *args: Any, **kwargs: Any) -> Any:
    if _is_reloaded_equal(model, batch):
        if hasattr(model.config, REWIRED_FIELD):
            delattr(model.config, REWIRED_FIELD)
    else:
        name = type(model).__name__
        setattr(model.config, REWIRED_FIELD, norm)
        warnings.warn(
            f"{name} has the norms {norm}, which from_pretrained does not build: the loaded model "
            "would compute something else. Load the weights with load_state_dict into a model that "
            "was rewired the same way, or save addnorm.from_hf(model).rewire(...) of the original",
            UserWarning,
            stacklevel=2,
        )
    return type(model).save_pretrained(model, *args, **kwargs)


def _is_reloaded_equal(model: Any, batch: Batch) -> bool:
    """Return whether the class computes the same with the weights of a model."""
    weights = model.state_dict()
    try:
        with torch.random.fork_rng():
            stock = type(model)(copy.deepcopy(model.config))
    except USER_CODE_ERRORS:  # a class of the caller with other arguments: nothing is known
        return False
    if {*stock.state_dict()} != {*weights}:
        return False
    weight = next(model.parameters())
    stock = stock.to(device=weight.device, dtype=weight.dtype)
    stock.load_state_dict(weights)
    with evaluation(model, stock):
        expected, got = (list_outputs(batch.call(each)) for each in (model, stock))
    error, scale = compare_outputs(expected, got)
    return error <= TOLERANCE * max(scale, 1e-30)
