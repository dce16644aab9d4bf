"""`addnorm selftest`: passes here, and fails where a result is wrong."""

import json

import pytest
import torch

from addnorm.cli.main import main
from addnorm.core.errors import UserError
from addnorm.exporters.targets import get_target
from addnorm.kernels import library, norm
from addnorm.selftest import CHECKS, GPU_CHECKS, CheckResult, describe_environment, run_checks
from addnorm.selftest import checks as module
from addnorm.selftest import run as runner
from addnorm.wirings.post_ln import PostNorm

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["kernels", "wirings", "training", "decoding"])
def test_check_passes(name):
    assert CHECKS[name](CPU)


@pytest.mark.slow
def test_exports_pass(monkeypatch, capfd):
    monkeypatch.setattr(type(get_target("onnx")), "min_torch", "99")
    assert CHECKS["export"](CPU).endswith("torch (exact, 0e+00), onnx (needs torch 99)")
    assert "[transformers]" not in "".join(capfd.readouterr())


@pytest.mark.skipif(not library.list_levels(), reason="no native kernels")
def test_kernels_are_really_called(monkeypatch):
    called = []
    original = library.call_native
    monkeypatch.setattr(
        library, "call_native", lambda name, data: (called.append(name), original(name, data))[1]
    )
    CHECKS["kernels"](CPU)
    assert {"add_norm_forward", "add_norm_backward", "dropout"} <= set(called)


def test_wrong_wiring_fails(monkeypatch):
    original = PostNorm.write
    monkeypatch.setattr(
        PostNorm,
        "write",
        lambda self, state, site, branch: original(
            self, state, site, branch * (1.01 if branch.dtype == torch.float32 else 1)
        ),
    )
    with pytest.raises(module.CheckFailure, match=r"relative difference .*, expected at most"):
        module.check_wirings(CPU)


def test_failure_does_not_stop_the_others(monkeypatch):
    def crash(device):
        raise RuntimeError("broken")

    monkeypatch.setattr(runner, "CHECKS", {"one": crash, "two": lambda device: "fine"})
    first, second = run_checks()
    assert (first.outcome, first.detail) == ("failed", "RuntimeError: broken")
    assert (second.outcome, second.detail) == ("passed", "fine")


@pytest.mark.parametrize("name", list(GPU_CHECKS))
def test_check_for_gpus_passes_on_a_cpu_as_far_as_it_can(name):
    assert GPU_CHECKS[name](CPU)


def test_checks_for_gpus_fail_where_a_result_is_wrong(monkeypatch):
    layer_norm = norm.layer_norm
    monkeypatch.setattr(
        norm,
        "layer_norm",
        lambda x, *rest: layer_norm(x, *rest) * (1 + 1e-3 * (x.element_size() == 4)),
    )
    with pytest.raises(module.CheckFailure, match="layer_norm: relative difference"):
        GPU_CHECKS["fused"](CPU)


def test_gpus_get_more_checks(monkeypatch):
    monkeypatch.setattr(runner, "CHECKS", {"one": lambda device: "fine"})
    monkeypatch.setattr(runner, "GPU_CHECKS", {"two": lambda device: device.type})
    monkeypatch.setattr(runner, "find_device", lambda device: torch.device(device))
    assert [each.name for each in run_checks("cpu")] == ["one"]
    assert [each.detail for each in run_checks("cuda")] == ["fine", "cuda"]


@pytest.mark.parametrize("device", ["nonsense", "meta", "cuda:99"])
def test_missing_device_is_an_error_in_one_line(device, capsys):
    with pytest.raises(UserError, match=f"^device: expected .* got '{device}'[^\n]*$"):
        list(run_checks(device))
    assert main(["selftest", "--device", device]) == 2
    captured = capsys.readouterr()
    assert not captured.out and captured.err.count("\n") == 1


def test_command_prints_results_and_exits_with_one_on_failure(monkeypatch, capsys):
    monkeypatch.setattr(runner, "CHECKS", {"one": lambda device: "fine"})
    assert main(["selftest"]) == 0
    out = capsys.readouterr().out
    assert "torch:" in out and "1 passed, 0 failed on cpu" in out
    monkeypatch.setattr(
        "addnorm.selftest.run_checks", lambda device: [CheckResult("one", "failed", "no", 0.1)]
    )
    assert main(["selftest", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["results"][0]["detail"] == "no"


def test_environment_names_versions():
    text = describe_environment()
    assert text["torch"] == torch.__version__ and text["native kernels"]
