"""A time limit includes the predictions that follow training."""

from types import SimpleNamespace

import pytest

from addnorm.tabular.training import time_limit
from addnorm.tabular.training.time_limit import TimeLimit


class Clock:
    """Clock that only moves when it is told to."""

    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time_limit, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def train(limit, clock, *, step, validation, steps_per_epoch):
    """Run a training loop whose steps and validations take the given seconds."""
    while limit.fraction() < 1:
        for _ in range(steps_per_epoch):
            elapsed = limit.fraction()
            limit.steps += 1
            clock.now += step
            if elapsed >= 1:
                break
        with limit.validation():
            clock.now += validation
    clock.now += validation  # calibration


@pytest.mark.parametrize("steps_per_epoch", [1, 7, 1000])
@pytest.mark.parametrize("validation", [0.0, 0.5, 3.0])
def test_training_validation_and_calibration_fit_into_the_limit(clock, validation, steps_per_epoch):
    limit = TimeLimit(20.0, validation_steps=2 * validation / 0.1)
    train(limit, clock, step=0.1, validation=validation, steps_per_epoch=steps_per_epoch)
    # Two steps and the validation of an epoch that just began may come on top.
    assert 10 < limit.seconds < 20 + 3 * 0.1 + validation


def test_time_without_limit_or_without_validation(clock):
    unlimited, limit = (TimeLimit(each, validation_steps=0) for each in (None, 10.0))
    clock.now += 4
    assert unlimited.fraction() == 0 and limit.fraction() == 0.4
    clock.now += 400
    assert unlimited.fraction() == 0 and limit.fraction() == 1


def test_first_validation_is_estimated_from_the_steps(clock):
    limit = TimeLimit(10.0, validation_steps=4)
    limit.steps, clock.now = 2, clock.now + 2
    # A step takes 1 s, so a prediction of the validation rows 2 s: 6 s are left for training.
    assert limit.fraction() == pytest.approx(2 / 6)
