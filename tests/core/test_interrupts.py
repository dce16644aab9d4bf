"""Ctrl-C is raised, even where Python would discard the exception."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

import addnorm
from addnorm.core.interrupts import deferred_interrupt, raise_if_interrupted
from addnorm.doctor.stress_test import stress
from tests.doctor.models.tiny import DIM, vectors


@pytest.fixture
def pressed():
    """Return a function that sends SIGINT, with Python's default handler installed."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, former)


class Presses(nn.Linear):
    """Sends SIGINT in a finalizer, where exceptions are discarded."""

    def __init__(self, press):
        super().__init__(DIM, DIM)
        self.press = press

    def forward(self, x):
        class Finalized:
            def __del__(inner):
                self.press()
                sum(range(1000))  # time enough for the handler

        Finalized()
        return x + super().forward(torch.relu(super().forward(x)))


def test_trace_is_interrupted(pressed):
    with pytest.raises(KeyboardInterrupt):
        addnorm.doctor(Presses(pressed), vectors())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_stress_test_is_interrupted(pressed, monkeypatch):
    monkeypatch.setattr(Presses, "__deepcopy__", lambda self, memo: self, raising=False)
    with pytest.raises(KeyboardInterrupt):
        list(stress(Presses(pressed), vectors(), lr=1e-3, steps=3))


def test_interrupt_is_raised_once_and_at_the_end_at_the_latest(pressed, capfd):
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        pressed()
        message = "addnorm: stopping at the next operation; Ctrl-C once more to stop at once\n"
        assert capfd.readouterr().err == message
    raise_if_interrupted()
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        pressed()
        pressed()  # the second one does not wait
        pytest.fail("the second signal was not handled")


def test_handler_of_the_caller_is_kept(pressed):
    received = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    with deferred_interrupt():
        pressed()
    assert received == [signal.SIGINT]


SCRIPT = """
import os, signal, torch
from torch import nn
signal.signal(signal.SIGINT, signal.default_int_handler)
class Press(nn.Linear):
    steps = 0
    def forward(self, x):
        if self.training:
            Press.steps += 1
            if Press.steps == 3:
                class Finalized:
                    def __del__(inner):
                        os.kill(os.getpid(), signal.SIGINT)
                        sum(range(1000))
                Finalized()
        return x + super().forward(torch.relu(super().forward(x)))
def build():
    return Press(8, 8)
"""


@pytest.mark.slow
def test_command_exits_with_130(tmp_path):
    (tmp_path / "pressing.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "addnorm"]
    command += ["doctor", "pressing:build", "--input", "float32[2,3,8]", "--stress"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (130, "addnorm: interrupted\n")
