"""Spike detector: jumps, divergence and ordinary curves."""

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


def classify(losses, **options):
    detector = SpikeDetector(**options)
    return [detector.update(loss) for loss in losses]


def noisy(curve, *, seed, noise):
    rng = random.Random(seed)
    return [loss + rng.gauss(0, noise) for loss in curve]


def falling_curve(seed, noise=0.05, count=400):
    """Return a typical falling loss curve."""
    return noisy((2 + 7 * math.exp(-step / 60) for step in range(count)), seed=seed, noise=noise)


@few
@given(seeds, st.floats(0, 0.3))
def test_noisy_falling_curve_is_fine(seed, noise):
    assert set(classify(falling_curve(seed, noise))) == {"fine"}


@few
@given(seeds, st.floats(0.1, 50), st.floats(-0.002, 0.0025), st.floats(0, 0.05))
def test_slow_trend_is_fine(seed, level, slope, noise):
    curve = [level * (1 + slope * step) for step in range(350)]
    assert set(classify(noisy(curve, seed=seed, noise=noise * level))) == {"fine"}


@few
@given(st.floats(-1e3, 1e3), st.integers(4, 200))
def test_constant_curve_with_rounding_is_fine(level, window):
    assert set(classify([level] * 300, window=window)) == {"fine"}
    detector = SpikeDetector(window=window)
    for step in range(300):
        assert detector.update(level * (1 + 1e-7 * (step % 3))) == "fine"


@few
@given(st.lists(st.floats(-1e6, 1e6), max_size=32))
def test_first_finite_losses_are_fine(losses):
    assert set(classify(losses)) <= {"fine"}


@few
@given(seeds, st.integers(40, 390), st.floats(1.5, 1e6))
def test_only_the_jump_is_a_spike(seed, at, factor):
    losses = falling_curve(seed)
    losses[at] = losses[at] * factor + 2  # above every loss in the window
    verdicts = classify(losses)
    if at > 220:
        assert verdicts[at] == "spike"
    assert set(verdicts[:at] + verdicts[at + 1 :]) == {"fine"}


def test_spikes_do_not_change_the_statistics():
    losses = falling_curve(0)
    for at in range(250, 400, 2):
        losses[at] += 3
    verdicts = classify(losses)
    assert [at for at, verdict in enumerate(verdicts) if verdict == "spike"] == list(
        range(250, 400, 2)
    )


@few
@given(seeds, st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 399))
def test_nonfinite_loss_diverges_without_side_effect(seed, value, at):
    losses = falling_curve(seed)
    broken = [*losses[:at], value, *losses[at:]]
    verdicts = classify(broken)
    assert verdicts[at] == "diverged"
    assert set(verdicts[:at] + verdicts[at + 1 :]) <= {"fine"}


@pytest.mark.parametrize("window", [16, 128])
def test_long_high_loss_diverges(window):
    verdicts = classify([*falling_curve(1), *noisy([40.0] * 300, seed=2, noise=1.0)], window=window)
    after = verdicts[400:]
    assert after[0] == "spike"
    assert "diverged" not in after[: window - 1]
    assert set(after[window - 1 :]) == {"diverged"}


def test_new_level_is_accepted():
    losses = [*falling_curve(1), *noisy([5.0] * 300, seed=2, noise=0.05)]
    after = classify(losses, window=128)[400:]
    assert after == ["spike"] * 31 + ["fine"] * 269


@few
@given(seeds, st.integers(0, 120), st.integers(4, 40))
def test_restored_detector_gives_equal_results(seed, cut, window):
    rng = random.Random(seed)
    losses = [rng.choice((1.0, 1.1, 1.2, 9.0, math.nan)) for _ in range(200)]
    whole, first = SpikeDetector(window=window, sigmas=3.0), SpikeDetector(window=window, sigmas=3)
    expected = [whole.update(loss) for loss in losses]
    actual = [first.update(loss) for loss in losses[:cut]]
    text = json.dumps(first.to_dict(), allow_nan=False)
    second = SpikeDetector.from_dict(json.loads(text))
    actual += [second.update(loss) for loss in losses[cut:]]
    assert actual == expected
    assert second.to_dict() == whole.to_dict()


@pytest.mark.parametrize("window", [3, 4.0, True])
def test_window_must_be_an_integer(window):
    with pytest.raises(UserError, match="window: expected an integer of at least 4, got"):
        SpikeDetector(window=window)


@pytest.mark.parametrize("sigmas", [0, -1.0, math.nan, "6", True])
def test_sigmas_must_be_positive(sigmas):
    with pytest.raises(UserError, match="sigmas: expected a positive number, got"):
        SpikeDetector(sigmas=sigmas)


def test_regular_hard_batches_are_not_spikes():
    """One batch in twenty has four times the loss; only higher losses are spikes."""
    detector, rng = SpikeDetector(), random.Random(0)
    for step in range(2000):
        level = 2.0 * 0.999**step
        loss = level * (4 if step % 20 == 7 else 1) * (1 + 0.1 * rng.random())
        assert detector.update(loss) == "fine", step
    assert detector.update(level * 8) == "spike"
