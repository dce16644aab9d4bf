"""Intervals over seeds."""

import math
import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from addnorm.comparison.statistics import Estimate, paired_difference, simultaneous_half_width

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


def test_intervals_hold_for_all_pairs_together():
    """Of six equal arms, a pair is seldom outside; intervals of single pairs fail often."""
    rng = random.Random(0)
    single = together = 0
    for _ in range(300):
        arms = [{seed: rng.gauss(0, 1) for seed in range(3)} for _ in range(6)]
        differences = [paired_difference(ours, theirs) for ours, theirs in combinations(arms, 2)]
        half = simultaneous_half_width(arms)
        single += any(each.excludes_zero for each in differences)
        together += any(abs(each.mean) > half for each in differences)
    assert together / 300 < 0.08 < 0.2 < single / 300


def test_two_arms_have_the_interval_of_their_difference():
    ours, theirs = {0: 1.0, 1: 2.0, 2: 4.0}, {0: 0.5, 1: 2.5, 2: 2.0, 3: 9.0}
    expected = paired_difference(ours, theirs).half
    assert simultaneous_half_width([ours, theirs]) == pytest.approx(expected)
    assert simultaneous_half_width([ours]) is None
    assert simultaneous_half_width([ours, {2: 1.0}]) is None
