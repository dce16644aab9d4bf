"""Axis layouts: which axes of a stream the axes of a tensor come from.

A layout describes a tensor that is computed from a stream. For each axis it lists the axes of the
stream that the axis holds, slowest first, with their sizes. Axes of the stream are counted from the
end: -1 holds features, -2 tokens, -3 examples.

Example: splitting 12 features into 3 heads of 4, and moving the heads to the front.

    operation                  shape            layout (origins of each axis)
    x                          (2, 7, 12)       [-3], [-2], [-1]
    x.view(2, 7, 3, 4)         (2, 7, 3, 4)     [-3], [-2], [-1], [-1]
    .permute(0, 2, 1, 3)       (2, 3, 7, 4)     [-3], [-1], [-2], [-1]
    .reshape(6, 7, 4)          (6, 7, 4)        [-3, -1], [-2], [-1]

Each axis is a tuple of factors. A reshape moves factors from axis to axis and splits them where
sizes require it; a permutation reorders axes. `analysis/axis_mixing.py` follows layouts through a
branch to find out whether an operation mixes tokens or features.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from addnorm.doctor.graph.nodes import Shape

FOREIGN_AXIS = 0
"""Origin of axes of activations that are not computed from the stream."""


@dataclass(frozen=True, slots=True)
class AxisFactor:
    """A factor of an axis."""

    origins: frozenset[int]
    """Axes of the stream that it holds, counted from the end."""
    size: int


Axis = tuple[AxisFactor, ...]
"""Factors of an axis, the slowest first; empty for an axis of size 1."""
Layout = tuple[Axis, ...]


def identity_layout(shape: Shape) -> Layout:
    """Return the layout of the stream itself: each axis comes from itself."""
    return tuple(make_axis({axis - len(shape)}, size) for axis, size in enumerate(shape))


def collect_origins(axes: Iterable[Axis]) -> frozenset[int]:
    """Return the axes of the stream that these axes hold."""
    return frozenset[int]().union(*(factor.origins for axis in axes for factor in axis))


def make_axis(stream_axes: Iterable[int], size: int) -> Axis:
    """Return an axis of one factor that holds these axes of the stream."""
    return (AxisFactor(frozenset(stream_axes), size),) if size > 1 else ()


def knowledge_rank(axis: Axis) -> int:
    """Return how much is known about an axis, from 0 to 3.

    3: it comes from the stream; 2: from another activation; 1: from neither; 0: it has size 1.
    """
    origins = collect_origins([axis])
    return 3 if origins - {FOREIGN_AXIS} else 2 if origins else 1 if axis else 0


def resize_axis(axis: Axis, size: int) -> Axis:
    """Return the same axis with another number of entries.

    A multiple of the old size means copies of each entry, as when a token goes to several experts.
    """
    old_size = math.prod(factor.size for factor in axis)
    if axis and size and size % old_size == 0:  # an empty slice is no copy
        return axis if size == old_size else (*axis, AxisFactor(frozenset(), size // old_size))
    return make_axis(collect_origins([axis]), size)


def reshape_layout(layout: Layout, shape: Shape) -> Layout:
    """Return the layout after a reshape: each factor moves with its entries.

    >>> axes = reshape_layout(identity_layout((2, 7, 12)), (2, 7, 3, 4))
    >>> [sorted(collect_origins([axis])) for axis in axes]
    [[-3], [-2], [-1], [-1]]
    """
    waiting = [factor for axis in layout for factor in axis][::-1]  # the slowest factor is last
    reshaped: list[Axis] = []
    for size in shape:
        axis: list[AxisFactor] = []
        while size > 1 and waiting:
            factor = waiting.pop()
            common = math.gcd(factor.size, size)
            if common == factor.size:  # the factor fits into the axis
                axis.append(factor)
            elif common == size:  # the axis takes the slower part, the rest waits
                axis.append(AxisFactor(factor.origins, size))
                waiting.append(AxisFactor(factor.origins, factor.size // size))
            else:  # the axis crosses the border of two factors: merge them and try again
                following = waiting.pop() if waiting else AxisFactor(frozenset(), 1)
                waiting.append(
                    AxisFactor(factor.origins | following.origins, factor.size * following.size)
                )
                if not following.origins and following.size == 1:
                    break
                continue
            size //= axis[-1].size
        reshaped.append(tuple(axis))
    return tuple(reshaped)
