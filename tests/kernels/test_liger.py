"""Operators of Liger-Kernel: equal to plain torch, and used where they may be.

There is no GPU here. `liger_interpreter.py` runs the kernels on a CPU with Triton's interpreter.
"""

import json
import subprocess
import sys

import pytest
import torch

from addnorm.kernels import liger, norm

NORMS = ("rms_norm", "rms_norm without gain", "layer_norm", "dyt", "dyt without bias")
LOSSES = tuple(
    f"cross_entropy smoothing={smoothing} host_knows_targets={known}"
    for smoothing in (0.0, 0.1)
    for known in (True, False)
)


@pytest.fixture(scope="module")
def report():
    pytest.importorskip("liger_kernel", reason="needs the optional package liger-kernel")
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.kernels.liger_interpreter"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [*NORMS, "add_rms_norm", *LOSSES, "model"])
def test_operator_equals_torch_in_float32(report, name):
    assert report["float32"][name] < 1e-5


@pytest.mark.parametrize("name", [*NORMS, "add_rms_norm"])
def test_operator_equals_torch_in_half_precision(report, name):
    assert report["float16"][name] < 2**-5


def test_model_uses_the_operators(report):
    assert report["model_calls"] == ["add_rms_norm", "cross_entropy_rows", "rms_norm"]
    assert set(report["calls"]) == {*report["model_calls"], "layer_norm", "dyt"}


def test_gradients_of_gradients_are_refused(report):
    assert report["second derivative refused"]


def test_conditions(monkeypatch):
    monkeypatch.setattr(liger, "is_installed", lambda: True)
    x, weight = torch.ones(2, 4), torch.ones(4)
    assert not liger.can_use_norm(x, weight)  # a CPU
    monkeypatch.setattr(liger, "DEVICES", ("cpu",))
    assert liger.can_use_norm(x, weight)
    assert not liger.can_use_norm(x.double(), weight)
    assert not liger.can_use_norm(x[:0], weight)
    assert not liger.can_use_norm(torch.ones(1, liger.MAX_FEATURES + 1))
    assert not liger.can_use_norm(x, weight.to("meta"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert liger.can_use_norm(x)
        assert not liger.can_use_norm(x.bfloat16())
    with torch.overrides.BaseTorchFunctionMode():
        assert not liger.can_use_norm(x)
    compiled = torch.compile(lambda x: x * liger.can_use_norm(x), backend="eager", fullgraph=True)
    assert not compiled(x).any()


def test_environment_variable_switches_it_off(monkeypatch):
    monkeypatch.setenv("ADDNORM_LIGER", "off")
    assert not liger.is_installed.__wrapped__()


def test_cpu_uses_torch(monkeypatch):
    monkeypatch.setattr(liger, "rms_norm", lambda *_: pytest.fail("used on a CPU"))
    x = torch.randn(3, 4)
    torch.testing.assert_close(
        norm.rms_norm(x, None, 1e-6), torch.nn.functional.rms_norm(x, (4,), None, 1e-6)
    )
