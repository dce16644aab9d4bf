"""Registry of bugs with their fixed forms, and of healthy models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """One bug as it occurred in public code, and the form in which it was fixed.

    Args:
        name: identifier
        kind: group of the bug
        source: address of the issue, pull request or file where the bug was described
        expect: what a useful report says, written before the first run
        build: function from `broken` (and the options) to the model
        inputs: function that returns the inputs a user would give
        options: options of the model that a user would pass as `config`
        batch: number of the batch that the bug belongs to
    """

    name: str
    kind: str
    source: str
    expect: str
    build: Callable[..., nn.Module]
    inputs: Callable[[], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 1


@dataclass(frozen=True)
class Healthy:
    """A model on which nothing above a remark may be reported."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    batch: int = 1


CASES: dict[str, Case] = {}
HEALTHY: dict[str, Healthy] = {}


def bug(
    kind: str, source: str, expect: str, inputs: Callable[[], Any], **options: Any
) -> Callable[..., Any]:
    """Register the decorated function `build(broken, **options)` as a bug."""

    def register(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        name = build.__name__
        if name in CASES:
            raise ValueError(
                f"{name}: expected a new name, got a registered one; rename the function"
            )
        batch = _batch(build)
        CASES[name] = Case(name, kind, source, expect, build, inputs, options, batch)
        return build

    return register


def healthy(inputs: Callable[[], Any]) -> Callable[..., Any]:
    """Register the decorated function as a healthy model."""

    def register(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        HEALTHY[build.__name__] = Healthy(build.__name__, build, inputs, _batch(build))
        return build

    return register


def _batch(build: Callable[..., Any]) -> int:
    """Return the batch that a module belongs to."""
    numbers = {"second": 2, "third": 3, "fourth": 4}
    return next((n for word, n in numbers.items() if word in build.__module__), 1)


def ids(batch: int = 2, length: int = 12, vocab: int = 50) -> Callable[[], Tensor]:
    """Return a function that draws token ids without the padding id 0."""
    return lambda: torch.randint(1, vocab, (batch, length))


def padded(batch: int = 4, length: int = 12, vocab: int = 50) -> Tensor:
    """Return token ids with 2, 3, 4, ... padding ids 0 at the end of the rows."""
    tokens = torch.randint(1, vocab, (batch, length))
    for row in range(batch):
        tokens[row, length - 2 - row :] = 0
    return tokens


def pairs() -> tuple[Tensor, Tensor]:
    """Return source and target ids with padding ids 0 at the end."""
    return padded(), padded()


def stream(batch: int = 2, length: int = 12, dim: int = 64) -> Callable[[], Tensor]:
    """Return a function that draws a continuous sequence."""
    return lambda: torch.randn(batch, length, dim)
