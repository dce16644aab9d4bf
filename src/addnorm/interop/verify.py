"""The last word on a copy: both models answer the same small input, or nothing was loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.models import Config

TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}
HALF_PRECISION_TOLERANCE = 0.1
"""Relative difference that is allowed, and for half precision."""


@torch.no_grad()
def verify_copy(theirs: Any, ours: Any) -> None:
    """Refuse a copy that answers otherwise than the model it was made from.

    Every tensor may have found its place and every field its meaning, and still somebody may have
    changed a module, a hook or the config after the model was built.
    """
    weight = next(iter(theirs.parameters()))
    inputs = _make_inputs(ours.config, weight)
    with _eval_mode(theirs), _eval_mode(ours):
        try:
            wanted = theirs(**inputs)
        except Exception as problem:
            raise UserError(
                f"{type(theirs).__name__} cannot be run on a small input to compare with "
                f"({type(problem).__name__}: {problem}); nothing was loaded"
            ) from None
        got = ours(**inputs)
    name = "logits" if getattr(wanted, "logits", None) is not None else "last_hidden_state"
    one, other = getattr(wanted, name).double(), getattr(got, name).double()
    allowed = TOLERANCE.get(weight.dtype, HALF_PRECISION_TOLERANCE) * max(
        1.0, one.abs().max().item()
    )
    difference = (one - other).abs().max().item()
    if not difference <= allowed:
        raise UserError(
            f"the copy of {type(theirs).__name__} answers otherwise ({name} differ by up to "
            f"{difference:.2g}): its modules or hooks are not those that its config describes; "
            "nothing was loaded"
        )


def _make_inputs(config: Config, weight: Tensor) -> dict[str, Tensor]:
    if config.image is not None:
        shape = (1, config.channels, config.image, config.image)
        waves = torch.arange(shape[1] * shape[2] * shape[3], device=weight.device).sin()
        return {"pixel_values": waves.view(shape).to(weight.dtype)}
    ids = (torch.arange(8, device=weight.device).view(2, 4) * 7 + 5) % (config.vocab or 1)
    pair = {"decoder_input_ids": ids[:, :3]} if config.kind == "seq2seq" else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **pair}


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation for a moment; every module is left as it was found."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
