"""Downsampling of curves before they are drawn, to limit the size of a page."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

Item = TypeVar("Item")
Points = Sequence[tuple[float, float]]
"""(step, value) pairs in order of the step."""
MAX_POINTS = 1200


def downsample(points: Points, max_points: int = MAX_POINTS) -> list[tuple[float, float]]:
    """Return at most `max_points` points: the minimum and maximum of each interval.

    Keeping both extremes preserves spikes, which averaging or striding would hide.

    >>> downsample([(step, step % 7) for step in range(1400)], 4)
    [(0, 0), (6, 6), (700, 0), (706, 6)]
    """
    if len(points) <= max_points:
        return list(points)
    intervals = max(1, max_points // 2)
    kept: list[tuple[float, float]] = []
    for index in range(intervals):
        start, end = (len(points) * n // intervals for n in (index, index + 1))
        low = min(points[start:end], key=lambda point: point[1])
        high = max(points[start:end], key=lambda point: point[1])
        kept += sorted({low, high})
    return kept


def evenly_spaced(items: Sequence[Item], max_items: int) -> list[Item]:
    """Return at most `max_items` evenly spaced items, including the first and the last.

    >>> evenly_spaced(range(100), 4)
    [0, 33, 66, 99]
    """
    if len(items) <= max_items:
        return list(items)
    return [items[round(n * (len(items) - 1) / (max_items - 1))] for n in range(max_items)]


def moving_average(points: Points) -> list[tuple[float, float]]:
    """Smooth a curve with a centered window of a fortieth of its points.

    The window shrinks at both ends, so the smoothed curve has as many points and no lag.
    """
    half = len(points) // 80
    sums = [0.0, *accumulate(value for _, value in points)]
    smoothed = []
    for index, (step, _) in enumerate(points):
        start, end = max(0, index - half), min(len(points), index + half + 1)
        smoothed.append((step, (sums[end] - sums[start]) / (end - start)))
    return smoothed


def finite_points(points: Points) -> list[tuple[float, float]]:
    """Return the points whose value is finite."""
    return [point for point in points if math.isfinite(point[1])]
