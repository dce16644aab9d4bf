"""Verification of a converted model: its outputs on a small input must match the original's."""

from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.measure.isolation import eval_mode
from addnorm.models import Config

TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}
HALF_PRECISION_TOLERANCE = 0.1
"""Largest allowed difference, relative to the largest output, by dtype and for half precision."""


@torch.no_grad()
def verify_copy(theirs: Any, ours: Any) -> None:
    """Raise `UserError` if a converted model's outputs differ from the original's.

    Config and tensors may match and the outputs still differ: a module, a hook or the config may
    have been changed after the original was built.

    Args:
        theirs: original model
        ours: `HFModel` converted from it
    """
    weight = next(iter(theirs.parameters()))
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
    tolerance = TOLERANCE.get(weight.dtype, HALF_PRECISION_TOLERANCE)
    allowed = tolerance * max(1.0, their_output.abs().max().item())
    difference = (their_output - our_output).abs().max().item()
    if not difference <= allowed:
        raise UserError(
            f"expected {class_name} as its config describes it, got {name} that differ by up to "
            f"{difference:.2g}; check for modules or hooks that were changed after it was built"
        )


def _make_inputs(config: Config, weight: Tensor) -> dict[str, Tensor]:
    if config.image is not None:
        shape = (1, config.channels, config.image, config.image)
        waves = torch.arange(shape[1] * shape[2] * shape[3], device=weight.device).sin()
        return {"pixel_values": waves.view(shape).to(weight.dtype)}
    ids = (torch.arange(8, device=weight.device).view(2, 4) * 7 + 5) % (config.vocab or 1)
    pair = {"decoder_input_ids": ids[:, :3]} if config.kind == "seq2seq" else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **pair}
