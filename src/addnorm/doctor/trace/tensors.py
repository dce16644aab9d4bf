"""Tensors nested in the inputs or outputs of a model: dicts, lists, tuples and dataclasses."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

PLAIN_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
MAX_DEPTH = 6
"""Maximum depth of nesting."""


def iter_named_tensors(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor with its dotted path, in order.

    >>> import torch
    >>> [path for path, _ in iter_named_tensors({"a": torch.ones(1), "b": (torch.ones(2), 3)})]
    ['a', 'b.0']
    """
    if isinstance(value, Tensor):
        yield name, value
        return
    if depth > MAX_DEPTH or isinstance(value, str | bytes | int | float | type(None)):
        return
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = ((f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value))
    for key, part in parts:
        yield from iter_named_tensors(part, f"{name}.{key}" if name else str(key), depth + 1)


def iter_tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor, in order."""
    for _, tensor in iter_named_tensors(value):
        yield tensor


def map_tensors(value: Any, function: Any) -> Any:
    """Return the same structure with `function` applied to every tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(part, function) for key, part in value.items()}
    if isinstance(value, MutableMapping):  # such as a BatchEncoding of transformers
        mapped = copy.copy(value)
        for key, part in value.items():
            mapped[key] = map_tensors(part, function)
        return mapped
    if isinstance(value, list | tuple):
        parts = [map_tensors(part, function) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        mapped = copy.copy(value)
        for field in dataclasses.fields(value):
            part = map_tensors(getattr(value, field.name), function)
            object.__setattr__(mapped, field.name, part)
        return mapped
    return value


def to_plain(tensor: Tensor) -> Tensor:
    """Return a sparse tensor as a dense one, and a float8 tensor in float32."""
    plain = tensor if tensor.layout == torch.strided else tensor.to_dense()
    is_small = plain.is_floating_point() and plain.dtype not in PLAIN_FLOATS
    return plain.float() if is_small else plain
