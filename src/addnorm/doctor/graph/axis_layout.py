"""Layouts: which axes of a stream the axes of a tensor come from."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from addnorm.doctor.graph.nodes import Shape

FOREIGN = 0
"""Where axes of activations come from that are not made of the stream; its own are counted from
the end, -1 and so on."""


@dataclass(frozen=True, slots=True)
class Part:
    """A factor of an axis: the axes of the stream that it holds, and how many entries."""

    origins: frozenset[int]
    size: int


Axis = tuple[Part, ...]
"""Its factors, the slowest first; none where it has one entry."""
Layout = tuple[Axis, ...]


def fresh(shape: Shape) -> Layout:
    """Each axis comes from itself."""
    return tuple(axis_of({place - len(shape)}, size) for place, size in enumerate(shape))


def origins(axes: Iterable[Axis]) -> frozenset[int]:
    """The axes of the stream that some axes hold."""
    return frozenset[int]().union(*(part.origins for axis in axes for part in axis))


def axis_of(held: Iterable[int], size: int) -> Axis:
    """An axis that holds these axes of the stream."""
    return (Part(frozenset(held), size),) if size > 1 else ()


def told(axis: Axis) -> int:
    """How much is known of an axis: of the stream, of another one, of neither."""
    held = origins([axis])
    return 3 if held - {FOREIGN} else 2 if held else 1 if axis else 0


def sized(axis: Axis, size: int) -> Axis:
    """The same axis with fewer entries, or with more: a multiple means copies of each, as where a
    token goes to several experts."""
    held = math.prod(part.size for part in axis)
    if axis and size % held == 0:
        return axis if size == held else (*axis, Part(frozenset(), size // held))
    return axis_of(origins([axis]), size)


def regrouped(layout: Layout, shape: Shape) -> Layout:
    """The layout behind a reshape: factors go where their entries go.

    >>> axes = regrouped(fresh((2, 7, 12)), (2, 7, 3, 4))
    >>> [sorted(origins([axis])) for axis in axes]
    [[-3], [-2], [-1], [-1]]
    """
    waiting = [part for axis in layout for part in axis][::-1]
    found: list[Axis] = []
    for size in shape:
        axis: list[Part] = []
        while size > 1 and waiting:
            part = waiting.pop()
            shared = math.gcd(part.size, size)
            if shared == part.size:
                axis.append(part)
            elif shared == size:  # the slower factor of a part
                axis.append(Part(part.origins, size))
                waiting.append(Part(part.origins, part.size // size))
            else:  # runs across the border of two parts
                after = waiting.pop() if waiting else Part(frozenset(), 1)
                waiting.append(Part(part.origins | after.origins, part.size * after.size))
                if not after.origins and after.size == 1:
                    break
                continue
            size //= axis[-1].size
        found.append(tuple(axis))
    return tuple(found)
