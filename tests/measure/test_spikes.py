"""Losses that jump, that run away, and the many that do neither."""

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm import UserError
from addnorm.measure import SpikeDetector

few = settings(max_examples=25)
seeds = st.integers(0, 10**6)


def judged(losses, **options):
    detector = SpikeDetector(**options)
    return [detector.update(loss) for loss in losses]


def noisy(curve, *, seed, noise):
    draw = random.Random(seed)
    return [loss + draw.gauss(0, noise) for loss in curve]


def sensible(seed, noise=0.05, count=400):
    """A loss that falls as losses do."""
    return noisy((2 + 7 * math.exp(-step / 60) for step in range(count)), seed=seed, noise=noise)


@few
@given(seeds, st.floats(0, 0.3))
def test_a_curve_that_falls_with_noise_is_fine(seed, noise):
    assert set(judged(sensible(seed, noise))) == {"fine"}


@few
@given(seeds, st.floats(0.1, 50), st.floats(-0.002, 0.0025), st.floats(0, 0.05))
def test_a_curve_that_slowly_rises_or_falls_is_fine(seed, level, slope, noise):
    curve = [level * (1 + slope * step) for step in range(350)]
    assert set(judged(noisy(curve, seed=seed, noise=noise * level))) == {"fine"}


@few
@given(st.floats(-1e3, 1e3), st.integers(4, 200))
def test_a_constant_curve_is_fine_and_so_is_its_rounding(level, window):
    assert set(judged([level] * 300, window=window)) == {"fine"}
    detector = SpikeDetector(window=window)
    for step in range(300):
        assert detector.update(level * (1 + 1e-7 * (step % 3))) == "fine"


@few
@given(st.lists(st.floats(-1e6, 1e6), max_size=32))
def test_nothing_finite_is_judged_in_the_first_steps(losses):
    assert set(judged(losses)) <= {"fine"}


@few
@given(seeds, st.integers(40, 390), st.floats(1.5, 1e6))
def test_a_jump_is_a_spike_and_nothing_else_is(seed, at, factor):
    losses = sensible(seed)
    losses[at] = losses[at] * factor + 2  # above the fall that the window still remembers
    verdicts = judged(losses)
    if at > 220:
        assert verdicts[at] == "spike"
    assert set(verdicts[:at] + verdicts[at + 1 :]) == {"fine"}


def test_spikes_do_not_raise_the_level_against_which_later_ones_are_judged():
    losses = sensible(0)
    for at in range(250, 400, 2):
        losses[at] += 3
    verdicts = judged(losses)
    assert [at for at, verdict in enumerate(verdicts) if verdict == "spike"] == list(
        range(250, 400, 2)
    )


@few
@given(seeds, st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 399))
def test_what_is_not_finite_has_diverged_at_any_step_and_leaves_no_trace(seed, value, at):
    losses = sensible(seed)
    broken = [*losses[:at], value, *losses[at:]]
    verdicts = judged(broken)
    assert verdicts[at] == "diverged"
    assert set(verdicts[:at] + verdicts[at + 1 :]) <= {"fine"}


@pytest.mark.parametrize("window", [16, 128])
def test_a_loss_far_above_the_start_for_long_has_diverged(window):
    verdicts = judged([*sensible(1), *noisy([40.0] * 300, seed=2, noise=1.0)], window=window)
    after = verdicts[400:]
    assert after[0] == "spike"
    assert "diverged" not in after[: window - 1]
    assert set(after[window - 1 :]) == {"diverged"}


def test_a_new_level_below_the_start_is_accepted_after_a_while():
    losses = [*sensible(1), *noisy([5.0] * 300, seed=2, noise=0.05)]
    after = judged(losses, window=128)[400:]
    assert after == ["spike"] * 31 + ["fine"] * 269


@few
@given(seeds, st.integers(0, 120), st.integers(4, 40))
def test_a_resumed_detector_goes_on_identically(seed, cut, window):
    draw = random.Random(seed)
    losses = [draw.choice((1.0, 1.1, 1.2, 9.0, math.nan)) for _ in range(200)]
    whole, first = SpikeDetector(window=window, sigmas=3.0), SpikeDetector(window=window, sigmas=3)
    expected = [whole.update(loss) for loss in losses]
    found = [first.update(loss) for loss in losses[:cut]]
    text = json.dumps(first.to_dict(), allow_nan=False)
    second = SpikeDetector.from_dict(json.loads(text))
    found += [second.update(loss) for loss in losses[cut:]]
    assert found == expected
    assert second.to_dict() == whole.to_dict()


@pytest.mark.parametrize("window", [3, 4.0, True])
def test_a_window_must_be_a_count(window):
    with pytest.raises(UserError, match="window: expected an integer of at least 4, got"):
        SpikeDetector(window=window)


@pytest.mark.parametrize("sigmas", [0, -1.0, math.nan, "6", True])
def test_sigmas_must_be_positive(sigmas):
    with pytest.raises(UserError, match="sigmas must be a positive number, got"):
        SpikeDetector(sigmas=sigmas)


def test_batches_that_are_always_harder_are_no_spikes():
    """One batch in twenty has four times the loss; only what is beyond those is a spike."""
    detector, chance = SpikeDetector(), random.Random(0)
    for step in range(2000):
        level = 2.0 * 0.999**step
        loss = level * (4 if step % 20 == 7 else 1) * (1 + 0.1 * chance.random())
        assert detector.update(loss) == "fine", step
    assert detector.update(level * 8) == "spike"
