"""Intervals and ranges to answers."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.claims.verdict import Check, Verdict, over_seeds
from addnorm.lab.statistics import Estimate


@pytest.mark.parametrize(
    ("mean", "half", "low", "high", "answer"),
    [
        (1.0, 0.1, 0.5, 1.5, "held"),
        (1.0, 0.5, 0.5, 1.5, "held"),
        (1.0, 0.6, 0.5, 1.5, "undecided"),
        (2.0, 0.4, 0.5, 1.5, "not held"),
        (0.0, 0.4, 0.5, 1.5, "not held"),
        (0.0, 9.0, 0.5, 1.5, "undecided"),
        (1.0, 0.1, 0.5, math.inf, "held"),
        (1.0, 0.1, -math.inf, 0.5, "not held"),
        (1.0, None, 0.5, 1.5, "undecided"),
        (math.nan, math.nan, 0.5, 1.5, "undecided"),
    ],
)
def test_where_the_interval_lies_decides(mean, half, low, high, answer):
    assert Check("", Estimate(mean, half, 3), low, high).answer == answer


def test_what_was_not_measured_is_undecided():
    assert Check("", None, low=0).answer == "undecided"


GOOD, BAD = Check("good", Estimate(1.0, 0.1, 3), low=0), Check("bad", Estimate(1.0, 0.1, 3), high=0)
OPEN = Check("open", Estimate(1.0, 2.0, 3), low=0)


@pytest.mark.parametrize(
    ("checks", "answer"),
    [
        ((GOOD, GOOD), "held"),
        ((GOOD, BAD), "not held"),
        ((OPEN, BAD), "not held"),
        ((GOOD, OPEN), "undecided"),
        ((), "undecided"),
    ],
)
def test_a_claim_is_held_if_all_checks_are(checks, answer):
    assert Verdict(checks).answer == answer


@given(
    st.floats(-1e6, 1e6),
    st.floats(0, 1e6) | st.none(),
    st.floats(-1e6, 1e6) | st.just(-math.inf),
    st.floats(-1e6, 1e6) | st.just(math.inf),
)
def test_a_verdict_comes_back_from_json(mean, half, low, high):
    found = Estimate(mean, half, 1 if half is None else 3)
    verdict = Verdict((Check("what", found, low, high), Check("nothing", None, low, high)))
    told = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert Verdict.from_dict(told) == verdict
    assert told["answer"] == verdict.answer


def test_a_number_that_is_none_comes_back_as_one():
    verdict = Verdict((Check("what", Estimate(math.nan, math.nan, 3), low=0),))
    (check,) = Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))).checks
    assert math.isnan(check.found.mean) and math.isnan(check.found.half)
    assert check.answer == "undecided"


def test_an_estimate_over_seeds_has_an_interval():
    assert over_seeds({0: 1.0, 1: 3.0}) == Estimate.of([1.0, 3.0])
    assert over_seeds({}) is None
