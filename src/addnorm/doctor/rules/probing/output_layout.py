"""Position of examples and tokens in the axes of an output."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.doctor.trace.tensors import map_tensors

MAX_EXTRA_TOKENS = 4
"""Tokens that a model may add to its input: class token, graph token, registers."""
SAME_TOLERANCE = 1e-3
"""Relative difference up to which two outputs count as equal."""


@dataclass(frozen=True)
class BatchLayout:
    """Axis of an output that holds the examples, alone or folded with another axis."""

    axis: int
    batch: int
    """Number of examples."""
    is_inner: bool = False
    """Whether the examples vary fastest on a folded axis: index = other * batch + example."""

    def move_batch_first(self, out: Tensor) -> Tensor:
        """Return the output with the examples as its first axis."""
        others = out.shape[self.axis] // self.batch
        if others == 1:
            return out.movedim(self.axis, 0)
        sizes = (others, self.batch) if self.is_inner else (self.batch, others)
        split = out.reshape(*out.shape[: self.axis], *sizes, *out.shape[self.axis + 1 :])
        return split.movedim(self.axis + self.is_inner, 0)


def iter_layouts(shape: tuple[int, ...], batch: int) -> Iterator[BatchLayout]:
    """Iterate over the possible layouts of `batch` examples, unfolded axes first."""
    whole = [axis for axis, size in enumerate(shape) if size == batch]
    yield from (BatchLayout(axis, batch) for axis in whole)
    for axis, size in enumerate(shape):
        if axis not in whole and size and size % batch == 0:
            yield BatchLayout(axis, batch)
            yield BatchLayout(axis, batch, is_inner=True)


def find_unique_layout(shape: tuple[int, ...], batch: int, *, axis: int) -> BatchLayout | None:
    """Return the layout if the sizes allow only the axis that the inputs have, else None."""
    if batch == 1:
        return next(iter_layouts(shape, batch), None)
    return (
        BatchLayout(axis, batch)
        if [i for i, n in enumerate(shape) if n == batch] == [axis]
        else None
    )


def find_layout_by_rolling(
    before: Tensor, *, batch: int, axis: int, example: Any, run: Callable[[Any], Tensor | None]
) -> BatchLayout | None:
    """Find the layout of an output by running the model on the examples in rotated order.

    The layout is the one in which the output is rotated in the same way.

    Args:
        before: output for the examples in their original order
        batch: number of examples
        axis: axis of the examples in the inputs
        example: positional and keyword inputs
        run: function that runs the model on such inputs

    Returns:
        The layout, or None if no layout fits.
    """
    rolled = run(map_tensors(example, lambda tensor: _roll_examples(tensor, batch, axis=axis)))
    if rolled is None or rolled.shape != before.shape:
        return None
    for layout in iter_layouts(tuple(before.shape), batch):
        first, second = layout.move_batch_first(before), layout.move_batch_first(rolled)
        if _is_close(first.roll(1, 0), second) and not _is_close(first, second):
            return layout
    return None


def _roll_examples(tensor: Tensor, batch: int, *, axis: int) -> Tensor:
    for each in (axis, 0):
        if tensor.dim() > each and tensor.shape[each] == batch:
            return tensor.roll(1, each)
    return tensor


def _is_close(one: Tensor, other: Tensor) -> bool:
    size = float(one.float().abs().mean()) + 1e-12
    difference = float((one.float() - other.float()).abs().max())
    return difference <= max(SAME_TOLERANCE, 16 * torch.finfo(one.dtype).eps) * size


def drop_last_token(out: Tensor, length: int) -> Tensor:
    """Return the entries that cannot belong to the last of `length` tokens on any axis."""
    for axis, size in enumerate(out.shape):
        if size and size % length == 0:
            index = torch.arange(size, device=out.device)
            last = (index % length == length - 1) | (index // (size // length) == length - 1)
            out = out.index_select(axis, index[~last])
    return out


def drop_hidden_tokens(out: Tensor, hidden: Tensor) -> Tensor:
    """Return the entries that cannot belong to a hidden token.

    If the output has an axis of examples next to an axis of tokens, or both folded into one, the
    hidden positions of each example are dropped. Otherwise every position that is hidden in any
    example is dropped. If the model adds tokens, their position is unknown, so every position that
    may be hidden under one of the alternatives is dropped.

    Args:
        out: output of the model
        hidden: (B, L) True at hidden tokens
    """
    batch, length = hidden.shape
    for axis, size in enumerate(out.shape):
        if size == batch * length:
            either = hidden.flatten() | hidden.mT.flatten()
            return out.index_select(axis, (~either).nonzero()[:, 0])
        for more in range(MAX_EXTRA_TOKENS + 1):
            mask, sizes = _extend_mask(hidden, more), out.shape[axis : axis + 2]
            if sizes in (mask.shape, mask.mT.shape):
                mask = mask if sizes == mask.shape else mask.mT
                if batch == length + more:
                    mask = mask | mask.mT
                return out.movedim((axis, axis + 1), (0, 1))[~mask]
    for axis, size in enumerate(out.shape):
        if size == length:
            return out.index_select(axis, (~hidden.any(0)).nonzero()[:, 0])
    return out


def _extend_mask(hidden: Tensor, extra_tokens: int) -> Tensor:
    """Return the positions that may be hidden if tokens were added on one or both sides."""
    shifts = [F.pad(hidden, (before, extra_tokens - before)) for before in range(extra_tokens + 1)]
    return torch.stack(shifts).any(0)
