"""Outcomes of synthetic loss curves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.comparison.outcomes import LossSummary, classify_outcome, progress
from tests.comparison.synthetic_study import BASELINE, curve


def summarize_curve(kind, *, broken=False, steps=200):
    points = curve(kind, steps)
    rows = [{"step": s, "name": "loss", "value": v, "split": "train"} for s, v in points]
    for step, value in points[:: steps // 5] + points[-1:]:
        rows.append({"step": step, "name": "loss", "value": value, "split": "valid"})
    rows.append({"step": 1, "name": "loss", "value": 0.0, "split": "train", "site": 3})  # ignored
    return LossSummary.from_rows(rows, has_nonfinite=broken)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("trained", "trained"),
        ("slow", "trained"),
        ("stuck", "stuck"),
        ("diverged", "diverged"),
        ("lost", "diverged"),
    ],
)
def test_outcome_of_known_curves(kind, expected):
    assert classify_outcome(summarize_curve(kind), baseline=BASELINE, best=0.4) == expected


def test_nonfinite_run_has_diverged():
    assert (
        classify_outcome(summarize_curve("trained", broken=True), baseline=BASELINE, best=0.4)
        == "diverged"
    )


def test_loss_far_above_baseline_has_diverged():
    flat = LossSummary(last=2 * BASELINE, lowest=BASELINE, recent=math.nan)
    assert classify_outcome(flat, baseline=BASELINE, best=0.4) == "diverged"


def test_falling_loss_has_not_diverged():
    falling = LossSummary(last=1.6 * BASELINE, lowest=1.6 * BASELINE, recent=math.nan)
    assert classify_outcome(falling, baseline=BASELINE, best=0.4) == "stuck"


def test_overfitted_run_is_stuck():
    overfitted = LossSummary(last=0.9 * BASELINE, lowest=0.3, recent=0.3)
    assert classify_outcome(overfitted, baseline=BASELINE, best=0.4) == "stuck"


def test_run_without_validation_has_diverged():
    assert classify_outcome(LossSummary.from_rows([]), baseline=BASELINE, best=0.4) == "diverged"


def test_all_cells_are_stuck_if_none_learned():
    best = summarize_curve("stuck").last
    assert classify_outcome(summarize_curve("stuck"), baseline=BASELINE, best=best) == "stuck"


def test_outcome_depends_on_best_loss():
    middling = LossSummary(last=2.6, lowest=2.6, recent=2.6)
    assert classify_outcome(middling, baseline=3.0, best=2.5) == "trained"
    assert classify_outcome(middling, baseline=3.0, best=0.1) == "stuck"


@given(st.floats(0.1, 9), st.floats(0.01, 0.94), st.floats(0, 20))
def test_progress_is_monotonic(baseline, share, loss):
    best = share * baseline
    assert progress(best, baseline=baseline, best=best) == pytest.approx(1)
    assert progress(baseline, baseline=baseline, best=best) == pytest.approx(0)
    order = ["diverged", "stuck", "trained"]
    first, second = (
        order.index(classify_outcome(LossSummary(each, each, each), baseline=baseline, best=best))
        for each in (loss, loss * 0.9)
    )
    assert second >= first
