"""Gates of attention heads and value residuals that start without an effect.

    o <- o * sigmoid(W h)        W = 0 and the output projection doubled, since sigmoid(0) = 1 / 2
    v <- v_0 + m * (v - v_0)     m = 1

Qiu et al., Gated Attention for Large Language Models, 2025, arXiv 2505.06708. Zhou et al., Value
Residual Learning, 2024, arXiv 2410.17897.
"""

from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.models import Model
from addnorm.rewiring.core_models import get_state, rebuild, start_tensors
from addnorm.rewiring.report import Change, Grade
from addnorm.sublayers.attention import SelfAttention
from addnorm.sublayers.multihead import MultiHeadAttention

OPEN_GATE = 4.0
"""Start of b in m = sigmoid(W h + b), 0.98: at m = 1 it would have no gradient."""


def change_attention(
    core: Model, *, gate: str | None, value_residual: str | None, fit: bool
) -> tuple[Model, list[Change], list[str]]:
    """Return a model with other options of attention, in float64.

    Args:
        core: the model, which is not changed
        gate: "head" or "element"; None for no change
        value_residual: "scalar", which starts without an effect, or "half" or "token", which do
            not; None for no change
        fit: False leaves the start values of a new model

    Returns:
        The model, its changes, and the names of new tensors.
    """
    options = {"gate": gate, "value_residual": value_residual}
    wanted = {name: value for name, value in options.items() if value is not None}
    fields = {name: value for name, value in wanted.items() if getattr(core.config, name) != value}
    for name, value in fields.items():
        if getattr(core.config, name) != "none":
            raise UserError(
                f"{name}: expected a model without one, got {getattr(core.config, name)!r}, which "
                f"cannot become {value!r}"
            )
    if not fields:
        return core, [], []
    new, tensors = start_tensors(core, **fields)
    old = get_state(core)
    added = [name for name in tensors if name not in old]
    result = {name: old.get(name, value) for name, value in tensors.items()}
    changes = []
    for path, module in new.named_modules():
        if isinstance(module, MultiHeadAttention):
            changes += _describe(path, module, fields)
            if fit:
                _set_neutral(path, module, fields, result)
    return rebuild(core, result, **fields), changes, added


def _describe(path: str, module: MultiHeadAttention, fields: dict[str, Any]) -> list[Change]:
    changes = []
    if "gate" in fields:
        text = "gate weights 0, output projection doubled"
        after = f"gate {fields['gate']}"
        changes.append(Change(path, "gate none", after, "equal_at_start", text))
    if _mixes_values(module) and "value_residual" in fields:
        kind = fields["value_residual"]
        grade: Grade = "equal_at_start" if kind == "scalar" else "fitted"
        text = "weight 1 of the own values" if kind == "scalar" else ""
        after = f"value_residual {kind}"
        changes.append(Change(path, "value_residual none", after, grade, text))
    return changes


def _mixes_values(module: nn.Module) -> bool:
    return isinstance(module, SelfAttention) and module.value_residual is not None


def _set_neutral(
    path: str, module: MultiHeadAttention, fields: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    if "gate" in fields:
        name = f"{path}.output_gate.proj.weight"
        tensors[name] = torch.zeros_like(tensors[name])
        tensors[f"{path}.out_proj.weight"] = tensors[f"{path}.out_proj.weight"] * 2
    if "value_residual" in fields and _mixes_values(module):
        start = {"weight": 1.0, "proj.weight": 0.0, "proj.bias": OPEN_GATE}
        for own, value in start.items():
            name = f"{path}.value_residual.{own}"
            if name in tensors:
                tensors[name] = torch.full_like(tensors[name], value)
