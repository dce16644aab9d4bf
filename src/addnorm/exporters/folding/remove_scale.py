"""Removal of a scale: its constants move into weights and into fields of the config."""

from typing import Any

import torch

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.models import build
from addnorm.models.base import Model
from addnorm.stacks import Stack
from addnorm.sublayers.multihead import MultiHeadAttention
from addnorm.wirings.deepnorm import DeepNorm
from addnorm.wirings.keel import Keel


def remove_scale(model: Model) -> Model:
    """Return a model without a scale and with equal outputs; the model itself if it has none.

    Raises:
        UserError: the factor on the branches is behind a norm
    """
    config = model.config
    if config.scale is None:
        return model
    changes: dict[str, Any] = {"scale": None}
    if config.vocab is not None:
        changes["embed_scale"] = config.embedding_factor
    if config.kind != "classifier":
        changes["head_scale"] = config.head_factor
    attention = next(each for each in model.modules() if isinstance(each, MultiHeadAttention))
    if attention.logit_scale != attention.head_dim**-0.5:
        changes["attention_scale"] = attention.logit_scale
    names = ("encoder_wiring", "wiring") if len(model.stacks) > 1 else ("wiring",)
    for name, stack in zip(names, model.stacks, strict=True):
        changes[name] = _explicit_call(stack)
    plain = build(config.replace(**changes), device="meta")
    state = model.state_dict()
    tensors = {name: each.clone() for name, each in state.items() if "_extra_state" not in name}
    plain.load_state_dict(tensors, assign=True, strict=False)
    with torch.no_grad():
        for stack, ours in zip(plain.stacks, model.stacks, strict=True):
            _multiply_branches(stack, ours.branch_multiplier)
    return plain.train(model.training)


def _explicit_call(stack: Stack) -> str:
    """Return the call of a wiring with the constants of the base depth written out."""
    call, wiring = stack.wiring_call, stack.wiring
    constants = {}
    if isinstance(wiring, DeepNorm):
        constants = {"alpha": wiring.alpha, "beta": wiring.beta}
    elif isinstance(wiring, Keel):
        constants = {"alpha": wiring.alpha}
    inner = [each for each in wiring.modules() if isinstance(each, DeepNorm | Keel)]
    rule = stack.scale_rule
    is_behind_norm = wiring.multiplier_place == "write" and rule is not None
    if (inner and not constants) or (
        is_behind_norm and rule is not None and rule.residual_multiplier(stack.plan.depth) != 1
    ):
        raise UserError(
            f"scale: expected a wiring whose branches can carry the factor of {stack.scale_call}, "
            f"got {call}; use --to onnx or --to torch"
        )
    return str(Call(call.name, {**call.options, **constants}))


def _multiply_branches(stack: Stack, factor: float) -> None:
    if factor == 1:
        return
    for sublayer in stack.sublayers:
        linear = (
            sublayer.out_proj if isinstance(sublayer, MultiHeadAttention) else sublayer.down_proj
        )
        for parameter in linear.parameters():  # type: ignore[union-attr]
            parameter.mul_(factor)
