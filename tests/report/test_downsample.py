"""Downsampling and smoothing of curves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.report.downsample import downsample, evenly_spaced, moving_average

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


@given(NUMBERS, st.integers(2, 50))
def test_downsampling_keeps_order_and_both_extremes(numbers, max_points):
    points = list(enumerate(numbers))
    kept = downsample(points, max_points)
    assert len(kept) <= max(2, max_points)
    assert kept == sorted(set(kept)) and set(kept) <= set(points)
    for extreme in (min, max):
        assert extreme(value for _, value in kept) == extreme(numbers)


@given(st.lists(st.integers(), min_size=1, max_size=200), st.integers(2, 40))
def test_evenly_spaced_keeps_both_ends(items, max_items):
    kept = evenly_spaced(items, max_items)
    assert len(kept) == min(max_items, len(items))
    assert (kept[0], kept[-1]) == (items[0], items[-1])


@given(NUMBERS)
def test_moving_average_stays_between_extremes_and_keeps_steps(numbers):
    smoothed = moving_average(list(enumerate(numbers)))
    assert [step for step, _ in smoothed] == list(range(len(numbers)))
    slack = 1e-6 * max(1.0, max(map(abs, numbers)))
    assert all(min(numbers) - slack <= value <= max(numbers) + slack for _, value in smoothed)


def test_moving_average_has_no_lag():
    line = [(step, 3.0 * step) for step in range(400)]
    for smoothed, original in list(zip(moving_average(line), line, strict=True))[5:-5]:
        assert smoothed == pytest.approx(original)
