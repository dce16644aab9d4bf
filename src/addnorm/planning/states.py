"""Bytes of weights, gradients and optimizer states."""

from dataclasses import dataclass

import torch

from addnorm.core.errors import UserError
from addnorm.models import Model
from addnorm.stacks.scaling import matrix_ids
from addnorm.train.optimizers.base import registry as optimizers

STATE_BYTES = 4
"""Bytes of a number in the state of an optimizer, which is float32."""


@dataclass(frozen=True)
class ModelStates:
    """Bytes of what stays in memory between two steps, and of the gradients."""

    parameters: int
    weights: int
    gradients: int
    optimizer: int


def measure_states(model: Model, *, dtype: torch.dtype, optimizer: str) -> ModelStates:
    """Return the bytes of a model on the meta device.

    With weights in bfloat16, the optimizer also holds a copy of them in float32.

    Args:
        model: the model
        dtype: of weights and gradients
        optimizer: call string of an optimizer
    """
    parameters = list(model.parameters())
    count = sum(each.numel() for each in parameters)
    size = dtype.itemsize
    name = optimizers.resolve(optimizer).name
    matrices = matrix_ids(part for stack in model.stacks for part in stack.weights())
    state = 0
    for each in parameters:
        if name == "muon" and id(each) in matrices:
            state += each.numel()
        elif name == "adafactor":
            rows_and_columns = sum(each.shape[-2:]) * (each.numel() // each.shape[-2:].numel())
            state += rows_and_columns if each.ndim > 1 else each.numel()
        elif name in ("adamw", "adam", "radam", "muon"):
            state += 2 * each.numel()
        else:
            raise UserError(
                f"optimizer: expected adamw, adam, radam, adafactor or muon, got {optimizer!r}; "
                "the memory of others is not known"
            )
    master = count if size < STATE_BYTES else 0
    return ModelStates(count, count * size, count * size, (state + master) * STATE_BYTES)
