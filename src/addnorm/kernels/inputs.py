"""Checks of what callers pass as tensors, for messages that torch's own do not give."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError


def describe_value(value: Any) -> str:
    """Return dtype and shape of a tensor, or the type of anything else.

    >>> describe_value(torch.zeros(2, 3)), describe_value(None), describe_value([1])
    ('torch.float32 of shape (2, 3)', 'None', 'list')
    """
    if not isinstance(value, Tensor):
        return "None" if value is None else type(value).__name__
    layout = "" if value.layout == torch.strided else f"{value.layout} tensor of "
    return f"{layout}{value.dtype} of shape {tuple(value.shape)}"


def check_tensor(name: str, value: Any, expected: str = "a tensor") -> None:
    """Raise `UserError` unless the value is a dense tensor.

    Args:
        name: name of the argument
        value: what was passed
        expected: what the argument should be, such as "integers of shape (B, L)"
    """
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        raise UserError(f"{name}: expected {expected}, got {describe_value(value)}")


def check_index_range(name: str, index: Tensor, size: int, what: str) -> None:
    """Raise `UserError` if an index is not in 0 ... size - 1."""
    lowest, highest = int(index.min()), int(index.max())
    if lowest < 0 or highest >= size:
        wrong = lowest if lowest < 0 else highest
        raise UserError(f"{name}: expected {what} from 0 to {size - 1}, got {wrong}")


def has_shape(tensor: Tensor, *shapes: Sequence[int]) -> bool:
    """Return whether a tensor has one of some shapes.

    `shape in shapes` also compares shapes of other lengths, size by size. In an exported program
    that would fix a batch that happens to equal the number of heads.

    >>> has_shape(torch.ones(2, 3), (3, 2), (2, 3)), has_shape(torch.ones(2, 3), (2, 3, 4))
    (True, False)
    """
    return any(
        tensor.ndim == len(shape) and all(a == b for a, b in zip(tensor.shape, shape, strict=True))
        for shape in shapes
    )
