"""Intervals over seeds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from addnorm.comparison.statistics import Estimate, paired_difference

values = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


@given(values)
def test_interval_matches_scipy(numbers):
    estimate = Estimate.from_values(numbers)
    spread = stats.sem(numbers)
    if spread == 0:
        assert estimate.half == pytest.approx(0, abs=1e-9)
        return
    low, high = stats.t.interval(0.95, len(numbers) - 1, loc=np.mean(numbers), scale=spread)
    assert estimate.mean - estimate.half == pytest.approx(low, rel=1e-6, abs=1e-6)
    assert estimate.mean + estimate.half == pytest.approx(high, rel=1e-6, abs=1e-6)


def test_single_value_has_no_interval():
    assert Estimate.from_values([3.0]) == Estimate(3.0, None, 1)
    assert not Estimate.from_values([3.0]).excludes_zero
    assert Estimate.from_values([]) is None


@given(values, st.floats(0.1, 50))
def test_common_shift_cancels_in_paired_difference(numbers, shift):
    first = dict(enumerate(numbers))
    second = {seed: value - shift for seed, value in first.items()}
    estimate = paired_difference(first, second)
    assert estimate.mean == pytest.approx(shift, rel=1e-6)
    assert estimate.half == pytest.approx(0, abs=1e-6)
    assert estimate.excludes_zero


def test_paired_difference_uses_common_seeds():
    assert paired_difference({0: 1.0, 1: 2.0}, {1: 1.5, 2: 9.0}) == Estimate(0.5, None, 1)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_interval_coverage():
    rng = np.random.default_rng(0)
    hits = sum(
        abs(estimate.mean) <= estimate.half
        for estimate in (Estimate.from_values(list(rng.normal(size=4))) for _ in range(2000))
    )
    assert math.isclose(hits / 2000, 0.95, abs_tol=0.015)
