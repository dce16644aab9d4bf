"""`addnorm train start=... rewire=...`."""

import json

import pytest

import addnorm
from addnorm.cli.main import main
from addnorm.norms.constant_std import ConstantStd
from addnorm.rewiring.continued_training import read_start_recipe
from addnorm.rewiring.removal.trainer import NormRemovalCallback
from addnorm.train.recipe import read_recipe
from addnorm.train.trainer import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a few steps on a demo corpus."""
    folder = tmp_path_factory.mktemp("continued")
    assert main(["data", "demo", "--task", "lm", "-o", str(folder / "corpus")]) == 0
    keys = [f"data={folder / 'corpus'}", "dim=16", "depth=2", "heads=2", "steps=3", "vocab=300"]
    keys += ["max_length=32", "batch_tokens=64", "monitor_every=0", "norm=layer"]
    train(read_recipe("lm", None, keys), folder / "run")
    return folder / "run"


@pytest.mark.slow
def test_train_goes_on_after_a_change(run, tmp_path):
    out = tmp_path / "new"
    keys = [f"start={run}", "rewire=norm=rms depth=3", "steps=4"]
    assert main(["train", "lm", *keys, "-o", str(out)]) == 0
    config = addnorm.load(out).config
    assert config.norm.startswith("rms")
    assert config.depth == 3
    report = json.loads((out / ".start" / "rewire.json").read_text())
    assert report["grade"] == "equal_at_start"
    recipe = read_start_recipe("lm", None, keys, out)
    assert recipe.schedule == "cosine"  # with its warm-up of a tenth
    assert recipe.max_length == 32
    assert main(["train", "lm", *keys, "-o", str(out)]) == 0  # a finished run resumes as finished


@pytest.mark.slow
def test_norms_are_removed_during_a_run(run, tmp_path):
    out = tmp_path / "removed"
    keys = [f"start={run}", "rewire=norm=constant_std", "steps=5", "save_every=2"]
    recipe = read_start_recipe("lm", None, keys, out)
    callback = NormRemovalCallback(start=1, every=1, keep=1)
    train(recipe, out, callback=callback, until=3)
    assert callback.removal.num_removed == 3
    again = NormRemovalCallback(start=1, every=1, keep=1)
    train(recipe, out, callback=again)  # goes on where the first one was paused
    model = addnorm.load(out)
    flags = [bool(each.removed) for each in model.modules() if isinstance(each, ConstantStd)]
    assert flags == [False, True, True, True, True]
    deviations = [float(e.deviation) for e in model.modules() if isinstance(e, ConstantStd)]
    assert min(deviations) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["rewire=norm=rms"], "rewire: expected start=FOLDER beside it"),
        (["start={run}", "dim=32"], "dim: expected 16, as in the model of start, got 32"),
        (["start={run}", "norm=rms"], "use rewire=norm=rms"),
        (["start={run}", "rewire=heads=4"], "rewire: expected norm, qk_norm, wiring, depth"),
        (["start=/nowhere"], "expected a folder written by save"),
    ],
)
def test_refusals(run, tmp_path, capsys, keys, message):
    keys = [key.format(run=run) for key in keys] + ["data=corpus"]
    assert main(["train", "lm", *keys, "-o", str(tmp_path / "new")]) == 2
    assert message in capsys.readouterr().err
