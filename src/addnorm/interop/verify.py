"""Verification of a converted model: its outputs on a small input must match the original's."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.models import Config, Model, build
from addnorm.models.check_config import check_matches_config
from addnorm.stacks.eval_mode import eval_mode

CALL_FIELDS = (
    *("wiring", "norm", "encoder_wiring", "encoder_norm", "positions", "embed_norm", "qk_norm"),
)
"""Fields of a config that arrangements contain in canonical form."""
SHAPE_FIELDS = (
    *("ffn_dim", "kv_heads", "head_dim", "out_bias", "ffn_bias", "encoder_depth", "source_vocab"),
)
"""Fields that show in the shapes of weights, so that None equals the value it stands for."""
RATE_FIELDS = ("dropout", "attention_dropout", "activation_dropout")
HALF_PRECISION = {torch.float16, torch.bfloat16}
TOLERANCE = 1e-4
"""Largest allowed difference, relative to the largest output; float32 rounds to far less."""
PROBE_GAIN = 1.5
"""Size of outputs of a matrix for inputs of size 1, when activations and scores are compared."""


@torch.no_grad()
def verify_copy(theirs: Any, ours: Any) -> None:
    """Raise `UserError` if a converted model's outputs differ from the original's.

    Config and tensors may match and the outputs still differ: a module, a hook or the config may
    have been changed after the original was built. Models in half precision are compared as
    float32 copies: their rounding errors would hide such a change. Small weights would hide
    another activation, which is nearly linear there, so the models are compared again with larger
    ones.

    Args:
        theirs: original model
        ours: `HFModel` converted from it
    """
    dtypes = {each.dtype for each in theirs.parameters()} & HALF_PRECISION
    if dtypes:
        theirs, ours = copy.deepcopy(theirs).float(), copy.deepcopy(ours).float()
    inputs = make_example_inputs(ours.config, next(iter(theirs.parameters())))
    problem = _compare_models(theirs, ours, inputs)
    if problem and dtypes:
        _restore_constants(theirs, dtypes)
        problem = _compare_models(theirs, ours, inputs)
    if problem:
        raise UserError(
            f"expected {type(theirs).__name__} as its config describes it, got {problem}; "
            f"{suggest_repair(theirs)}"
        )


def suggest_repair(theirs: Any) -> str:
    """Return what to try with a model whose outputs differ from what its config describes."""
    capped = getattr(theirs.config, "attn_logit_softcapping", None) is not None
    if capped and getattr(theirs.config, "_attn_implementation", "eager") != "eager":
        return 'load it with attn_implementation="eager"; the others ignore attn_logit_softcapping'
    return "check for modules or hooks that were changed after it was built"


def _compare_models(theirs: Any, ours: Any, inputs: dict[str, Tensor]) -> str | None:
    problem = _find_difference(theirs, ours, inputs)
    if problem:
        return problem
    with _larger_weights(theirs, ours):
        return _find_difference(theirs, ours, inputs)


def _find_difference(theirs: Any, ours: Any, inputs: dict[str, Tensor]) -> str | None:
    """Return how the outputs of two models differ, or None if they are equal but for rounding."""
    with eval_mode(theirs), eval_mode(ours):
        try:
            expected = theirs(**inputs)
        except Exception as error:
            raise UserError(
                f"expected {type(theirs).__name__} to run on a small input, got "
                f"{type(error).__name__}: {error}"
            ) from None
        actual = ours(**inputs)
    name = "logits" if getattr(expected, "logits", None) is not None else "last_hidden_state"
    their_output, our_output = getattr(expected, name).double(), getattr(actual, name).double()
    difference = (their_output - our_output).abs().max().item()
    if difference <= TOLERANCE * their_output.abs().max().item():
        return None
    return f"{name} that differ by up to {difference:.2g}"


def _restore_constants(theirs: Any, dtypes: set[torch.dtype]) -> None:
    """Replace constants such as rotary frequencies that `model.half()` rounded by exact ones."""
    with torch.random.fork_rng():
        exact = type(theirs)(copy.deepcopy(theirs.config))
    tensors = dict((*theirs.named_parameters(), *theirs.named_buffers()))
    for name, value in (*exact.named_parameters(), *exact.named_buffers()):
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != value.shape or not value.is_floating_point():
            continue
        value = value.to(tensor)
        if any(torch.equal(value.to(dtype).to(tensor), tensor) for dtype in dtypes):
            tensor.copy_(value)


@contextmanager
def _larger_weights(theirs: Any, ours: Any) -> Iterator[None]:
    """Give all matrices of both models an ordinary size inside the block."""
    before: dict[Tensor, Tensor] = {}
    their_tensors, our_tensors = (dict(model.named_parameters()) for model in (theirs, ours.model))
    try:
        for pair in ours.origin.pairs:
            weight = their_tensors.get(pair.theirs)
            if pair.constant is not None or weight is None or weight.ndim < 2:
                continue
            size = weight.float().square().mean().sqrt().item() * min(weight.shape[-2:]) ** 0.5
            factor = 2.0 ** round(math.log2(max(1.0, PROBE_GAIN / size))) if size else 1.0
            for tensor in (weight, *(our_tensors[n] for n in pair.ours if n in our_tensors)):
                if tensor not in before:  # tied weights have several names
                    before[tensor] = tensor.clone()
                    tensor.mul_(factor)
        yield
    finally:
        for tensor, value in before.items():
            tensor.copy_(value)


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
    config = model.config
    fields = {
        name: value
        for name, value in config.model_dump().items()
        if name not in (*CALL_FIELDS, *SHAPE_FIELDS, *RATE_FIELDS)
    }
    if config.attention_scale is None:
        fields["attention_scale"] = (config.head_dim or config.dim // config.heads) ** -0.5
    for index, stack in enumerate(model.stacks):
        prefix = f"stacks[{index}]." if len(model.stacks) > 1 else ""
        fields |= {f"{prefix}{name}": value for name, value in stack.arrangement.items()}
    return fields | {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def make_example_inputs(config: Config, weight: Tensor) -> dict[str, Tensor]:
    """Return small keyword inputs of a converted model, on the device of a weight."""
    if config.image is not None:
        shape = (1, config.channels, config.image, config.image)
        waves = torch.arange(shape[1] * shape[2] * shape[3], device=weight.device).sin()
        return {"pixel_values": waves.view(shape).to(weight.dtype)}
    vocab = min(config.vocab or 1, config.source_vocab or config.vocab or 1)
    ids = (torch.arange(8, device=weight.device).view(2, 4) * 7 + 5) % vocab
    pair = {"decoder_input_ids": ids[:, :3]} if config.kind == "seq2seq" else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **pair}
