"""Trained, stuck or diverged: on made-up curves of known kinds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.comparison.outcomes import LossSummary, classify_outcome, progress
from tests.comparison.synthetic_study import BASELINE, curve


def course(kind, *, broken=False, steps=200):
    points = curve(kind, steps)
    rows = [{"step": s, "name": "loss", "value": v, "split": "train"} for s, v in points]
    for step, value in points[:: steps // 5] + points[-1:]:
        rows.append({"step": step, "name": "loss", "value": value, "split": "valid"})
    rows.append({"step": 1, "name": "loss", "value": 0.0, "split": "train", "site": 3})  # no loss
    return LossSummary.from_rows(rows, has_nonfinite=broken)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("trained", "trained"),
        ("slow", "trained"),
        ("stuck", "stuck"),
        ("diverged", "diverged"),
        ("lost", "diverged"),
    ],
)
def test_known_kinds(kind, wanted):
    assert classify_outcome(course(kind), baseline=BASELINE, best=0.4) == wanted


def test_training_that_broke_off_has_diverged_whatever_its_last_loss():
    assert (
        classify_outcome(course("trained", broken=True), baseline=BASELINE, best=0.4) == "diverged"
    )


def test_a_loss_far_above_the_baseline_has_diverged():
    flat = LossSummary(last=2 * BASELINE, lowest=BASELINE, recent=math.nan)
    assert classify_outcome(flat, baseline=BASELINE, best=0.4) == "diverged"


def test_a_loss_that_only_falls_has_not_diverged_however_high_it_still_is():
    falling = LossSummary(last=1.6 * BASELINE, lowest=1.6 * BASELINE, recent=math.nan)
    assert classify_outcome(falling, baseline=BASELINE, best=0.4) == "stuck"


def test_who_learns_by_heart_has_not_diverged():
    by_heart = LossSummary(last=0.9 * BASELINE, lowest=0.3, recent=0.3)
    assert classify_outcome(by_heart, baseline=BASELINE, best=0.4) == "stuck"


def test_no_validation_at_all_has_diverged():
    assert classify_outcome(LossSummary.from_rows([]), baseline=BASELINE, best=0.4) == "diverged"


def test_where_nobody_learnt_all_are_stuck():
    best = course("stuck").last
    assert classify_outcome(course("stuck"), baseline=BASELINE, best=best) == "stuck"


def test_the_same_loss_is_judged_by_what_others_reached():
    middling = LossSummary(last=2.6, lowest=2.6, recent=2.6)
    assert classify_outcome(middling, baseline=3.0, best=2.5) == "trained"
    assert classify_outcome(middling, baseline=3.0, best=0.1) == "stuck"


@given(st.floats(0.1, 9), st.floats(0.01, 0.94), st.floats(0, 20))
def test_the_best_is_1_the_baseline_0_and_lower_is_never_worse(baseline, share, loss):
    best = share * baseline
    assert progress(best, baseline=baseline, best=best) == pytest.approx(1)
    assert progress(baseline, baseline=baseline, best=best) == pytest.approx(0)
    order = ["diverged", "stuck", "trained"]
    first, second = (
        order.index(classify_outcome(LossSummary(each, each, each), baseline=baseline, best=best))
        for each in (loss, loss * 0.9)
    )
    assert second >= first
