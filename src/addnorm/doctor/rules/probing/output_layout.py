"""Which axis of an output holds the examples, and which numbers belong to which token."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.doctor.trace.tensors import map_tensors

MAX_EXTRA_TOKENS = 4
"""Tokens that a model may put to those it is given: of a class, of a graph, registers."""
SAME_TOLERANCE = 1e-3
"""Share of its own size by which an output may move and still be the same, or some roundings."""


@dataclass(frozen=True)
class BatchLayout:
    """Where the examples stand: on an axis, of which they may be the outer or the inner part."""

    axis: int
    batch: int
    is_inner: bool = False

    def move_batch_first(self, out: Tensor) -> Tensor:
        """The output with the examples as its first axis."""
        others = out.shape[self.axis] // self.batch
        if others == 1:
            return out.movedim(self.axis, 0)
        parts = (others, self.batch) if self.is_inner else (self.batch, others)
        split = out.reshape(*out.shape[: self.axis], *parts, *out.shape[self.axis + 1 :])
        return split.movedim(self.axis + self.is_inner, 0)


def iter_layouts(shape: tuple[int, ...], batch: int) -> Iterator[BatchLayout]:
    """Every place where so many examples fit, whole axes first."""
    whole = [axis for axis, size in enumerate(shape) if size == batch]
    yield from (BatchLayout(axis, batch) for axis in whole)
    for axis, size in enumerate(shape):
        if axis not in whole and size and size % batch == 0:
            yield BatchLayout(axis, batch)
            yield BatchLayout(axis, batch, is_inner=True)


def find_unique_layout(shape: tuple[int, ...], batch: int, *, axis: int) -> BatchLayout | None:
    """Where the examples stand if sizes alone leave one place, the one they have in the inputs."""
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
    """Where the examples stand in an output: what follows when they come in another order.

    axis: where they stand in the inputs.
    """
    turned = run(map_tensors(example, lambda tensor: _roll_examples(tensor, batch, axis=axis)))
    if turned is None or turned.shape != before.shape:
        return None
    for layout in iter_layouts(tuple(before.shape), batch):
        one, other = layout.move_batch_first(before), layout.move_batch_first(turned)
        if _is_close(one.roll(1, 0), other) and not _is_close(one, other):
            return layout
    return None


def _roll_examples(tensor: Tensor, batch: int, *, axis: int) -> Tensor:
    """The next example in the place of each."""
    for place in (axis, 0):
        if tensor.dim() > place and tensor.shape[place] == batch:
            return tensor.roll(1, place)
    return tensor


def _is_close(one: Tensor, other: Tensor) -> bool:
    size = float(one.float().abs().mean()) + 1e-12
    apart = float((one.float() - other.float()).abs().max())
    return apart <= max(SAME_TOLERANCE, 16 * torch.finfo(one.dtype).eps) * size


def drop_last_token(out: Tensor, length: int) -> Tensor:
    """Everything that cannot belong to the last token, wherever so many tokens fit."""
    for axis, size in enumerate(out.shape):
        if size and size % length == 0:
            place = torch.arange(size, device=out.device)
            last = (place % length == length - 1) | (place // (size // length) == length - 1)
            out = out.index_select(axis, place[~last])
    return out


def drop_hidden_tokens(out: Tensor, hidden: Tensor) -> Tensor:
    """Everything that cannot belong to a hidden token.

    hidden: (examples, tokens). Where both stand, side by side or as one axis, its own places are
    left out, else every place that is hidden in some example. Where a few more tokens come out than
    went in, nobody knows which are the new ones: a place is left out if one of them would do.
    """
    batch, length = hidden.shape
    for axis, size in enumerate(out.shape):
        if size == batch * length:
            some = hidden.flatten() | hidden.mT.flatten()
            return out.index_select(axis, (~some).nonzero()[:, 0])
        for more in range(MAX_EXTRA_TOKENS + 1):
            there, pair = _extend_mask(hidden, more), out.shape[axis : axis + 2]
            if pair in (there.shape, there.mT.shape):
                there = there if pair == there.shape else there.mT
                if batch == length + more:
                    there = there | there.mT
                return out.movedim((axis, axis + 1), (0, 1))[~there]
    for axis, size in enumerate(out.shape):
        if size == length:
            return out.index_select(axis, (~hidden.any(0)).nonzero()[:, 0])
    return out


def _extend_mask(hidden: Tensor, extra_tokens: int) -> Tensor:
    """Which of so many more places may be hidden, wherever the new ones stand."""
    ways = [F.pad(hidden, (before, extra_tokens - before)) for before in range(extra_tokens + 1)]
    return torch.stack(ways).any(0)
