"""Progress messages of claims."""

import pytest

from addnorm.claims import run_claims
from addnorm.claims.callbacks import ClaimsCallback
from addnorm.claims.progress import REPORT_INTERVAL_SECONDS, ProgressTimer
from addnorm.train.train_state import TrainState


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test advances."""
    now = [100.0]
    monkeypatch.setattr("addnorm.claims.progress.time.monotonic", lambda: now[0])
    return now


def test_messages_are_rate_limited_and_show_remaining_time(clock):
    said = []
    pace = ProgressTimer(said.append, total=40, unit="steps")
    pace.start_training(0)
    for step in range(1, 11):
        pace.on_step_end(TrainState(step=step), 0.0)
        clock[0] += REPORT_INTERVAL_SECONDS / 5
    pace.start_training(20)
    pace.on_step_end(TrainState(step=1), 0.0)
    assert said == ["6 of 40 steps, 68 s left", "21 of 40 steps, 19 s left"]


def test_earlier_session_does_not_count(clock):
    said = []
    pace = ProgressTimer(said.append, total=10, unit="seeds")
    pace.update(6)
    clock[0] += 2 * REPORT_INTERVAL_SECONDS
    pace.update(8)
    assert said == ["8 of 10 seeds, 20 s left"]


def test_training_steps_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("addnorm.claims.progress.REPORT_INTERVAL_SECONDS", 0.0)
    messages = []

    class Ear(ClaimsCallback):
        def on_message(self, text):
            messages.append(text)

    run_claims(["deep_layers_are_removable"], tmp_path, budget="smoke", callback=Ear())
    assert messages[-1].startswith("6 of 6 steps, ")
