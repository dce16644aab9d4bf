"""Recipe keys for GPUs, all together, and resumed: dtype, master weights, compile, accumulate,
recompute."""

import pytest
import torch
from safetensors.torch import load_file

from addnorm.train.trainer import train
from tests.train.cases import RecordingCallback, digest, make_recipe, write_number_corpus

KEYS = {
    "dtype": "bfloat16",
    "compile": True,
    "accumulate": 2,
    "recompute": True,
    "dropout": 0.1,
    "depth": 2,
    "steps": 8,
    "monitor_every": 0,
}


@pytest.fixture
def data(tmp_path):
    return write_number_corpus(tmp_path / "data", "lm").folder


@pytest.fixture(autouse=True)
def quick_compiler(monkeypatch):
    """Compile with a backend that takes seconds; the graph is the same."""
    original = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda self, **options: original(self, **options, backend="aot_eager"),
    )


@pytest.mark.parametrize("master_weights", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_all_keys_together_resume_exactly(data, tmp_path, master_weights):
    recipe = make_recipe(data, "lm", **KEYS, master_weights=master_weights)
    callback = RecordingCallback()
    train(recipe, tmp_path / "run", callback=callback, until=5)
    train(recipe, tmp_path / "run", callback=callback)
    train(recipe, tmp_path / "whole")
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
    losses = [loss for _, loss in callback.steps]
    assert len(losses) == 8 and losses[-1] < losses[0]
    weights = load_file(tmp_path / "run" / "checkpoints" / "step-8" / "model.safetensors")
    found = {each.dtype for name, each in weights.items() if "_extra_state" not in name}
    assert found == {torch.float32 if master_weights else torch.bfloat16}


@pytest.mark.parametrize("key", ["recompute", pytest.param("compile", marks=pytest.mark.slow)])
def test_key_changes_no_loss_but_for_rounding(data, tmp_path, key):
    """Without dropout, whose draws a compiled graph makes in another order."""
    keys = KEYS | {"dtype": "float32", "dropout": 0.0, "compile": False, "recompute": False}
    losses = []
    for value in (False, True):
        callback = RecordingCallback()
        recipe = make_recipe(data, "lm", **keys | {key: value})
        train(recipe, tmp_path / f"{key}-{value}", callback=callback)
        losses.append([loss for _, loss in callback.steps])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
