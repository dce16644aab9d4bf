"""Check that a model still is what its config describes, before it is written anywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from addnorm.core.errors import UserError

TOLERANCE = 1e-4
"""Largest allowed difference, relative to the largest output. Both models run the same code."""
HINT = "merge or remove adapters, or build a model with another config"


@torch.no_grad()
def check_matches_config(model: Any) -> None:
    """Raise `UserError` if a part of a model was replaced after it was built.

    Modules, weights and arrangements are compared with those of a new model of the same config.
    Then both run on a small input with the same weights, which finds changed attributes and hooks.

    Args:
        model: a `Model`
    """
    if any(_is_sharded(weight) for weight in model.parameters()):
        return  # each process has a part of the weights only
    with torch.device("meta"):
        twin = type(model)(model.config)
    _compare_modules(model, twin)
    _compare_tensors(model, twin)
    for ours, expected in zip(model.stacks, twin.stacks, strict=True):
        for name, value in expected.arrangement.items():
            if ours.arrangement[name] != value:
                raise _error(f"{name}={value}", f"{name}={ours.arrangement[name]}")
        expected.stream = ours.stream
    if not any(weight.is_meta for weight in model.parameters()):
        twin.load_state_dict(model.state_dict(), assign=True)
        _compare_outputs(model, twin)


def _is_sharded(weight: nn.Parameter) -> bool:
    if type(weight) is nn.Parameter:  # the common case; importing DTensor takes a second
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(weight, DTensor)


def _compare_modules(model: nn.Module, twin: nn.Module) -> None:
    modules, expected = dict(model.named_modules()), dict(twin.named_modules())
    for name in (*expected, *modules):
        types = [type(each.get(name)) for each in (expected, modules)]
        if types[0] is not types[1]:
            wanted, got = (
                "no module" if each is type(None) else f"{each.__module__}.{each.__name__}"
                for each in types
            )
            raise _error(f"{wanted} at {name or 'the top'}", got)


def _compare_tensors(model: nn.Module, twin: nn.Module) -> None:
    tensors, expected = model.state_dict(), twin.state_dict()
    for name in sorted({*tensors, *expected}):
        if name.endswith("_extra_state"):
            continue  # the arrangement, which is compared by its fields
        shapes = [
            f"{name} of shape {list(each[name].shape)}" if name in each else f"no {name}"
            for each in (expected, tensors)
        ]
        if shapes[0] != shapes[1]:
            raise _error(shapes[0], shapes[1])


def _compare_outputs(model: nn.Module, twin: nn.Module) -> None:
    inputs = make_example_inputs(model)
    # The class' own forward: a wrapper of an instance, such as that of mixed precision, rounds.
    forward: Any = type(model).forward
    with _evaluation_mode(twin), _evaluation_mode(model):
        try:
            expected = forward(twin, *inputs).double()
        except (UserError, RuntimeError):
            return  # it needs more than tokens, such as the condition of a norm or autocast
        got = forward(model, *inputs).double()
    allowed = TOLERANCE * expected.nan_to_num().abs().max().item()
    if not torch.allclose(got, expected, rtol=0.0, atol=allowed, equal_nan=True):
        difference = (got - expected).abs().max().item()
        raise _error(
            "the outputs",
            f"outputs that differ by up to {difference:.2g}; look for changed attributes or hooks",
        )


def make_example_inputs(model: Any) -> tuple[Any, ...]:
    """Return a small batch for a model."""
    config, weight = model.config, next(model.parameters())
    if config.image is not None:
        shape = (1, config.channels, config.image, config.image)
        waves = torch.arange(shape[1] * shape[2] * shape[3], device=weight.device).sin()
        return (waves.view(shape).to(weight.dtype),)
    limits = (stack.positions.max_length for stack in model.stacks)
    length = min(4, *(limit or 4 for limit in limits))
    numbers = torch.arange(2 * length, device=weight.device).view(2, length) * 7 + 5
    ids = numbers % (config.vocab or 1)
    if config.kind == "seq2seq":
        return numbers % (config.source_vocab or config.vocab or 1), ids
    return (ids, 1) if config.kind == "prefix_lm" else (ids,)


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation; restore the mode of every module afterwards."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _error(expected: str, got: str) -> UserError:
    return UserError(f"model: expected {expected}, as its config describes, got {got}; {HINT}")
