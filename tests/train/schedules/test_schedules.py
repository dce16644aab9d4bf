"""Schedules: formulas, exact peak, continuity, short runs."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.errors import UnknownNameError, UserError
from addnorm.train.schedules.base import (
    make_schedule,
    noam_peak,
    recommended_schedule,
    registry,
    resolve_steps,
)
from addnorm.wirings import registry as wirings

WARMED = ["constant", "inverse_sqrt", "linear", "cosine", "wsd"]
FALLING = ["inverse_sqrt", "decay_sqrt", "linear", "cosine"]
shares = st.floats(0, 0.5, exclude_max=True)
runs = st.integers(1, 3000)


def factors(call, steps):
    schedule = make_schedule(call)
    return [schedule.factor(step, steps) for step in range(1, steps + 1)]


# References, written from the formulas.


def noam(step, warmup, steps, k=1.0, dim=512):
    return k * dim**-0.5 * min(step**-0.5, step * warmup**-1.5)


REFERENCES = {
    "none": lambda t, w, T: 1.0,
    "constant(warmup=7)": lambda t, w, T: min(t / w, 1.0),
    "inverse_sqrt(warmup=7)": lambda t, w, T: min(t / w, (w / t) ** 0.5),
    "decay_sqrt(pace=7)": lambda t, w, T: (w / (w + t - 1)) ** 0.5,
    "linear(warmup=7)": lambda t, w, T: t / w if t <= w else (T - t) / (T - w),
    "linear(warmup=7, floor=0.1)": lambda t, w, T: (
        t / w if t <= w else 0.1 * (t - w) / (T - w) + (T - t) / (T - w)
    ),
    "cosine(warmup=7)": lambda t, w, T: (
        t / w if t <= w else math.cos(math.pi / 2 * (t - w) / (T - w)) ** 2
    ),
    "wsd(warmup=7, decay=10)": lambda t, w, T: min(t / w, 1.0, (T - t) / 10),
    "wsd(warmup=7, decay=10, shape=sqrt, floor=0.2)": lambda t, w, T: (
        t / w if t <= w else 1 - 0.8 * max(0, (t - T + 10) / 10) ** 0.5
    ),
}


@pytest.mark.parametrize("call", REFERENCES)
def test_factors_match_formula(call):
    expected = [REFERENCES[call](step, 7, 40) for step in range(1, 41)]
    assert factors(call, 40) == pytest.approx(expected, abs=1e-12)


def test_every_schedule_has_a_reference():
    assert {call.partition("(")[0] for call in REFERENCES} == set(registry)


@pytest.mark.parametrize(("k", "warmup", "peak"), [(1, 4000, 6.988e-4), (2, 8000, 9.882e-4)])
def test_noam_peak_matches_papers(k, warmup, peak):
    """Vaswani et al. 2017, and tensor2tensor's base v2, at dim 512."""
    assert noam_peak(512, warmup=warmup, k=k) == pytest.approx(peak, rel=1e-4)


@given(warmup=st.integers(1, 500), steps=st.integers(501, 2000), dim=st.integers(1, 4096))
def test_inverse_sqrt_with_noam_peak_equals_noam(warmup, steps, dim):
    schedule = make_schedule(f"inverse_sqrt(warmup={warmup})")
    for step in (1, warmup, warmup + 1, steps):
        lr = noam_peak(dim, warmup=warmup, k=2.0) * schedule.factor(step, steps)
        assert lr == pytest.approx(noam(step, warmup, steps, k=2.0, dim=dim), rel=1e-9)


@given(call=st.sampled_from(WARMED), share=shares, steps=runs)
def test_warmup_is_linear_reaches_peak_exactly_and_is_continuous(call, share, steps):
    schedule = make_schedule(f"{call}(warmup={share})")
    start = max(1, schedule.warmup_steps(steps))
    rise = [schedule.factor(step, steps) for step in range(1, start + 1)]
    assert rise[-1] == 1.0
    assert all(before < after for before, after in pairwise(rise))
    if call in ("linear", "cosine", "inverse_sqrt") and steps > start + 100:
        assert schedule.factor(start + 1, steps) > 1 - 1 / min(start + 1, 100)


@given(call=st.sampled_from(sorted(registry)), steps=runs)
def test_factor_is_between_0_and_1(call, steps):
    assert all(0 <= factor <= 1 for factor in factors(call, min(steps, 200)))
    assert make_schedule(call).factor(steps, steps) <= 1


@pytest.mark.parametrize("call", FALLING)
def test_factor_never_increases_after_peak(call):
    values = factors(f"{call}({'pace' if call == 'decay_sqrt' else 'warmup'}=0.2)", 100)
    top = values.index(1.0)
    fall = values[top:]
    assert len(fall) > 50
    assert all(before > after for before, after in pairwise(fall))


@pytest.mark.parametrize("call", sorted(registry))
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_shortest_runs_work(call, steps):
    values = factors(call, steps)
    assert max(values) == 1.0


@pytest.mark.parametrize("call", WARMED)
@pytest.mark.parametrize("warmup", ["0", "1", "0.0"])
def test_warmup_of_0_or_1_steps_is_none(call, warmup):
    assert make_schedule(f"{call}(warmup={warmup})").factor(1, 50) == 1.0


@pytest.mark.parametrize("call", ["linear", "cosine", "wsd"])
def test_last_step_reaches_floor_and_stays_there(call):
    assert make_schedule(call).factor(80, 80) == pytest.approx(0, abs=1e-15)
    schedule = make_schedule(f"{call}(floor=0.25)")
    assert schedule.factor(80, 80) == pytest.approx(0.25)
    assert schedule.factor(1000, 80) == schedule.factor(80, 80)


def test_fraction_equals_its_number_of_steps():
    assert factors("cosine(warmup=0.29)", 100) == factors("cosine(warmup=29)", 100)
    assert factors("wsd(decay=0.3)", 30) == factors("wsd(warmup=3, decay=9)", 30)


@given(first=st.floats(0, 1, exclude_max=True), steps=runs)
def test_fractions_that_sum_to_1_fit_into_a_run(first, steps):
    assert resolve_steps(first, steps) + resolve_steps(1 - first if first else 0.0, steps) <= steps


def test_factor_depends_only_on_step():
    schedule = make_schedule("cosine")
    backwards = [schedule.factor(step, 50) for step in range(50, 0, -1)]
    assert backwards[::-1] == factors("cosine", 50)


@pytest.mark.parametrize(
    ("call", "steps", "message"),
    [
        ("cosine(warmup=200)", 100, "a warm-up of 200 steps is longer than the run of 100; use"),
        ("wsd(warmup=60, decay=50)", 100, "a warm-up of 60 and a decay of 50 steps do not fit"),
        ("none", 0, "steps: expected 1 or more, got 0"),
    ],
)
def test_too_short_run_is_rejected(call, steps, message):
    with pytest.raises(UserError, match=message):
        make_schedule(call).check(steps)
    with pytest.raises(UserError, match=message):
        make_schedule(call).factor(1, steps)


def test_warmup_may_take_the_whole_run():
    assert factors("cosine(warmup=4)", 4) == [0.25, 0.5, 0.75, 1.0]


def test_step_0_is_rejected():
    with pytest.raises(
        UserError, match="step: expected 1 or more, got 0; steps are counted from 1"
    ):
        make_schedule("cosine").factor(0, 10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("cosin", "unknown schedule 'cosin'; did you mean 'cosine'?"),
        ("cosine(warm_up=5)", "has no option 'warm_up'; did you mean 'warmup'?"),
        ("cosine(warmup=1.5)", "option 'warmup' of schedule 'cosine': expected"),
        ("cosine(warmup=-1)", "option 'warmup' of schedule 'cosine': expected"),
        ("cosine(floor=2.0)", "option 'floor' of schedule 'cosine': expected"),
        ("wsd(shape=cubic)", "expected one of linear, sqrt, got 'cubic'"),
        ("none(warmup=5)", "schedule 'none' has no option 'warmup'"),
    ],
)
def test_invalid_calls_are_rejected(call, message):
    with pytest.raises(UserError) as refusal:
        make_schedule(call)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


# What goes with a wiring.


@pytest.mark.parametrize("wiring", wirings)
def test_every_wiring_recommends_a_valid_schedule(wiring):
    answer = recommended_schedule(wiring)
    assert str(registry.resolve(answer)) in (answer, answer.partition("(")[0])
    for steps in (1, 10, 5000):
        assert make_schedule(answer).factor(1, steps) > 0


def test_longer_warmup_of_two_wirings_decides():
    assert recommended_schedule("pre_ln", "post_ln") == recommended_schedule("post_ln")
    assert recommended_schedule("post_ln", "rezero") == recommended_schedule("post_ln")


def test_unknown_wiring_is_rejected():
    with pytest.raises(UnknownNameError, match="unknown wiring 'postln'; did you mean 'post_ln'"):
        recommended_schedule("postln")
