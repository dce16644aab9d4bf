"""Layouts: which axes of a stream the axes of a tensor come from."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from addnorm.doctor.graph.nodes import Shape

FOREIGN_AXIS = 0
"""Where axes of activations come from that are not made of the stream; its own are counted from
the end, -1 and so on."""


@dataclass(frozen=True, slots=True)
class AxisFactor:
    """A factor of an axis: the axes of the stream that it holds, and how many entries."""

    origins: frozenset[int]
    size: int


Axis = tuple[AxisFactor, ...]
"""Its factors, the slowest first; none where it has one entry."""
Layout = tuple[Axis, ...]


def identity_layout(shape: Shape) -> Layout:
    """Each axis comes from itself."""
    return tuple(make_axis({place - len(shape)}, size) for place, size in enumerate(shape))


def collect_origins(axes: Iterable[Axis]) -> frozenset[int]:
    """The axes of the stream that some axes hold."""
    return frozenset[int]().union(*(part.origins for axis in axes for part in axis))


def make_axis(stream_axes: Iterable[int], size: int) -> Axis:
    """An axis that holds these axes of the stream."""
    return (AxisFactor(frozenset(stream_axes), size),) if size > 1 else ()


def knowledge_rank(axis: Axis) -> int:
    """How much is known of an axis: of the stream, of another one, of neither."""
    held = collect_origins([axis])
    return 3 if held - {FOREIGN_AXIS} else 2 if held else 1 if axis else 0


def resize_axis(axis: Axis, size: int) -> Axis:
    """The same axis with fewer entries, or with more: a multiple means copies of each, as where a
    token goes to several experts."""
    held = math.prod(part.size for part in axis)
    if axis and size % held == 0:
        return axis if size == held else (*axis, AxisFactor(frozenset(), size // held))
    return make_axis(collect_origins([axis]), size)


def reshape_layout(layout: Layout, shape: Shape) -> Layout:
    """The layout behind a reshape: factors go where their entries go.

    >>> axes = regrouped(fresh((2, 7, 12)), (2, 7, 3, 4))
    >>> [sorted(origins([axis])) for axis in axes]
    [[-3], [-2], [-1], [-1]]
    """
    waiting = [part for axis in layout for part in axis][::-1]
    found: list[Axis] = []
    for size in shape:
        axis: list[AxisFactor] = []
        while size > 1 and waiting:
            part = waiting.pop()
            shared = math.gcd(part.size, size)
            if shared == part.size:
                axis.append(part)
            elif shared == size:  # the slower factor of a part
                axis.append(AxisFactor(part.origins, size))
                waiting.append(AxisFactor(part.origins, part.size // size))
            else:  # runs across the border of two parts
                after = waiting.pop() if waiting else AxisFactor(frozenset(), 1)
                waiting.append(AxisFactor(part.origins | after.origins, part.size * after.size))
                if not after.origins and after.size == 1:
                    break
                continue
            size //= axis[-1].size
        found.append(tuple(axis))
    return tuple(found)
