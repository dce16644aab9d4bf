"""Verification of a converted model: its outputs on a small input must match the original's."""

import copy
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.measure.evaluation_context import eval_mode
from addnorm.models import Config, Model, build
from addnorm.models.check_config import check_matches_config

CALL_FIELDS = (
    *("wiring", "norm", "encoder_wiring", "encoder_norm", "positions", "embed_norm", "qk_norm"),
)
"""Fields of a config that arrangements contain in canonical form."""
RATE_FIELDS = ("dropout", "attention_dropout", "activation_dropout")
HALF_PRECISION = {torch.float16, torch.bfloat16}
TOLERANCE = 1e-4
"""Largest allowed difference, relative to the largest output; float32 rounds to far less."""


@torch.no_grad()
def verify_copy(theirs: Any, ours: Any) -> None:
    """Raise `UserError` if a converted model's outputs differ from the original's.

    Config and tensors may match and the outputs still differ: a module, a hook or the config may
    have been changed after the original was built. Models in half precision are compared as
    float32 copies: their rounding errors would hide such a change.

    Args:
        theirs: original model
        ours: `HFModel` converted from it
    """
    weight = next(iter(theirs.parameters()))
    tolerance = TOLERANCE
    for dtype in {each.dtype for each in theirs.parameters()} & HALF_PRECISION:
        # Constants such as rotary frequencies stay as rounded as model.half() has made them.
        tolerance = max(tolerance, torch.finfo(dtype).eps)
    if tolerance > TOLERANCE:
        theirs, ours = copy.deepcopy(theirs).float(), copy.deepcopy(ours).float()
        weight = weight.float()
    inputs = _make_inputs(ours.config, weight)
    class_name = type(theirs).__name__
    with eval_mode(theirs), eval_mode(ours):
        try:
            expected = theirs(**inputs)
        except Exception as error:
            raise UserError(
                f"expected {class_name} to run on a small input, got {type(error).__name__}: "
                f"{error}"
            ) from None
        actual = ours(**inputs)
    name = "logits" if getattr(expected, "logits", None) is not None else "last_hidden_state"
    their_output, our_output = getattr(expected, name).double(), getattr(actual, name).double()
    allowed = tolerance * their_output.abs().max().item()
    difference = (their_output - our_output).abs().max().item()
    if not difference <= allowed:
        raise UserError(
            f"expected {class_name} as its config describes it, got {name} that differ by up to "
            f"{difference:.2g}; check for modules or hooks that were changed after it was built"
        )


def check_arrangement(model: Any, expected: Config, class_name: str) -> None:
    """Raise `UserError` if a converted model was replaced by one that computes something else.

    Args:
        model: attribute `model` of an `HFModel`
        expected: config of the model that `from_hf` built
        class_name: class of the original
    """
    if not isinstance(model, Model):
        raise UserError(
            f"to_hf: expected the attribute model to be an addnorm model, got "
            f"{type(model).__name__}"
        )
    check_matches_config(model)
    theirs = _describe_model(build(expected, device="meta"))
    ours = _describe_model(model)
    for name, value in theirs.items():
        if ours.get(name) != value:
            raise UserError(
                f"to_hf: expected the arrangement of {class_name}, {name}={value}, got "
                f"{name}={ours.get(name)}; use model.save(folder) for another arrangement"
            )


def _describe_model(model: Model) -> dict[str, Any]:
    """Return what a model computes in evaluation, with call strings in canonical form."""
    fields = {
        name: value
        for name, value in model.config.model_dump().items()
        if name not in CALL_FIELDS and name not in RATE_FIELDS
    }
    for index, stack in enumerate(model.stacks):
        prefix = f"stacks[{index}]." if len(model.stacks) > 1 else ""
        fields |= {f"{prefix}{name}": value for name, value in stack.arrangement.items()}
    return fields


def _make_inputs(config: Config, weight: Tensor) -> dict[str, Tensor]:
    if config.image is not None:
        shape = (1, config.channels, config.image, config.image)
        waves = torch.arange(shape[1] * shape[2] * shape[3], device=weight.device).sin()
        return {"pixel_values": waves.view(shape).to(weight.dtype)}
    vocab = min(config.vocab or 1, config.source_vocab or config.vocab or 1)
    ids = (torch.arange(8, device=weight.device).view(2, 4) * 7 + 5) % vocab
    pair = {"decoder_input_ids": ids[:, :3]} if config.kind == "seq2seq" else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **pair}
