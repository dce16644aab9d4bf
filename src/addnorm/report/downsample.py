"""Fewer numbers that show the same: before charts are drawn, for the eye and the page's size."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

Item = TypeVar("Item")
Points = Sequence[tuple[float, float]]
"""(step, value), by step."""
MAX_POINTS = 1200


def downsample(points: Points, max_points: int = MAX_POINTS) -> list[tuple[float, float]]:
    """At most `most` points: the lowest and the highest of each stretch, so that peaks stay.

    >>> thin([(step, step % 7) for step in range(1400)], 4)
    [(0, 0), (6, 6), (700, 0), (706, 6)]
    """
    if len(points) <= max_points:
        return list(points)
    stretches = max(1, max_points // 2)
    kept: list[tuple[float, float]] = []
    for number in range(stretches):
        start, end = (len(points) * n // stretches for n in (number, number + 1))
        low = min(points[start:end], key=lambda point: point[1])
        high = max(points[start:end], key=lambda point: point[1])
        kept += sorted({low, high})
    return kept


def evenly_spaced(items: Sequence[Item], max_items: int) -> list[Item]:
    """At most `most` of the items, evenly spread, the first and the last among them.

    >>> spread(range(100), 4)
    [0, 33, 66, 99]
    """
    if len(items) <= max_items:
        return list(items)
    return [items[round(n * (len(items) - 1) / (max_items - 1))] for n in range(max_items)]


def moving_average(points: Points) -> list[tuple[float, float]]:
    """The mean of each point and its neighbours, about a fortieth of all; at the ends, of fewer."""
    half = len(points) // 80
    sums = [0.0, *accumulate(value for _, value in points)]
    made = []
    for place, (step, _) in enumerate(points):
        start, end = max(0, place - half), min(len(points), place + half + 1)
        made.append((step, (sums[end] - sums[start]) / (end - start)))
    return made


def finite_points(points: Points) -> list[tuple[float, float]]:
    """The points whose value is a number."""
    return [point for point in points if math.isfinite(point[1])]
