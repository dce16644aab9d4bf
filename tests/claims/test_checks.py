"""Answers of checks and verdicts."""

import json
import math
from dataclasses import replace

import pytest

from addnorm.claims.checks import Check, Verdict, estimate_over_seeds
from addnorm.comparison.statistics import Estimate


@pytest.mark.parametrize(
    ("mean", "half", "low", "high", "answer"),
    [
        (1.0, 0.1, 0.5, 1.5, "held"),
        (1.0, 0.5, 0.5, 1.5, "undecided"),
        (0.0, 0.0, 0.0, math.inf, "not held"),
        (0.0, 0.0, -math.inf, 0.0, "not held"),
        (0.0, 0.0, -math.inf, math.inf, "not judged"),
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
def test_interval_decides_check(mean, half, low, high, answer):
    assert Check("", Estimate(mean, half, 3), low, high).answer == answer


def test_unmeasured_check_is_undecided():
    assert Check("", None, low=0).answer == "undecided"


GOOD, BAD = Check("good", Estimate(1.0, 0.1, 3), low=0), Check("bad", Estimate(1.0, 0.1, 3), high=0)
REPORTED = Check("reported", Estimate(1.0, 0.1, 3))
OPEN = Check("open", Estimate(1.0, 2.0, 3), low=0)


@pytest.mark.parametrize(
    ("checks", "answer"),
    [
        ((GOOD, GOOD), "held"),
        ((GOOD, BAD), "not held"),
        ((OPEN, BAD), "not held"),
        ((GOOD, OPEN), "undecided"),
        ((), "undecided"),
        ((GOOD, REPORTED), "held"),
        ((REPORTED,), "undecided"),
        ((GOOD, replace(GOOD, premise=True)), "held"),
        ((BAD, replace(GOOD, premise=True)), "not held"),
        ((BAD, replace(BAD, premise=True)), "undecided"),
        ((GOOD, replace(BAD, premise=True)), "undecided"),
        ((BAD, replace(OPEN, premise=True)), "undecided"),
        ((replace(GOOD, premise=True),), "undecided"),
    ],
)
def test_claim_is_held_if_all_checks_are_held(checks, answer):
    assert Verdict(checks).answer == answer


@pytest.mark.parametrize("mean", [1.0, math.nan])
def test_verdict_converts_to_plain_data(mean):
    verdict = Verdict((Check("what", Estimate(mean, mean, 3), low=0), Check("nothing", None)))
    data = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert data["answer"] == verdict.answer
    assert [check["answer"] for check in data["checks"]] == ["undecided", "not judged"]


def test_expected_range_as_text():
    assert Check("", None, 0.5, 1.5).expected_range == "0.5 to 1.5"
    assert Check("", None, low=0.5, premise=True).expected_range == "premise: above 0.5"
    assert Check("", None).expected_range == "nothing"


def test_estimate_over_seeds_has_interval():
    assert estimate_over_seeds({0: 1.0, 1: 3.0}) == Estimate.from_values([1.0, 3.0])
    assert estimate_over_seeds({}) is None


@pytest.mark.parametrize(
    ("checks", "sentence"),
    [
        ((GOOD, BAD), "Not held: bad is 1 ± 0.1, expected below 0."),
        ((GOOD, GOOD), "Held: good is 1 ± 0.1, expected above 0; and 1 more."),
        (
            (GOOD, replace(GOOD, what="wide", found=Estimate(0.5, 1.0, 3))),
            "Undecided: wide is 0.5 ± 1, expected above 0, which the data do not decide.",
        ),
        ((), "Undecided: nothing was measured."),
        ((Check("x", None, low=0),), "Undecided: x is not measured, expected above 0."),
        (
            (BAD, replace(BAD, premise=True)),
            "Undecided: a premise does not hold: bad is 1 ± 0.1, expected below 0.",
        ),
    ],
)
def test_deciding_check_as_sentence(checks, sentence):
    assert Verdict(checks).why == sentence


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (0.6665, 0.024, "0.67 ± 0.02"),
        (-0.0006, 0.013, "0.00 ± 0.01"),
        (6.448, 0.29, "6.4 ± 0.3"),
        (9.6e-05, 6e-06, "9.6e-05 ± 6e-06"),
        (1.0, 0.0, "1"),
        (0.123456, None, "0.123"),
        (470.0, 30.0, "4.7e+02 ± 3e+01"),
    ],
)
def test_short_number_has_the_precision_of_its_interval(mean, half, text):
    assert Check("", Estimate(mean, half, 3)).format_short() == text


def test_short_exponential_has_its_interval():
    assert Check("", Estimate(6.142, 0.39, 3)).format_short(exp=True) == "460 (310 to 690)"
    assert Check("", Estimate(0.0, None, 1)).format_short(exp=True) == "1"
    assert Check("", None).format_short() == "not measured"
