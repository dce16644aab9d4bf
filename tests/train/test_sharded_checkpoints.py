"""Sharded checkpoints: written by each process, read by any number of them."""

import pytest
import torch
from safetensors.torch import save_file

from addnorm.train import checkpoint as checkpoints
from addnorm.train.trained_run import TrainedRun
from addnorm.train.trainer import train
from tests.train.cases import make_recipe, write_number_corpus
from tests.train.test_distributed import read_losses, run_and_kill, run_to_end


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_number_corpus(tmp_path_factory.mktemp("corpus"), count=200).folder


def load_newest(folder):
    return next(checkpoints.iter_valid_checkpoints(folder / "checkpoints"))


def assert_equal_checkpoints(run, expected):
    found, wanted = load_newest(run), load_newest(expected)
    assert found.step == wanted.step
    assert found.tensors.keys() == wanted.tensors.keys()
    for group, tensors in wanted.tensors.items():
        assert found.tensors[group].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(found.tensors[group][name], tensor), (group, name)


def test_sharded_checkpoint_has_the_tensors_of_a_full_one(data, tmp_path):
    recipe = make_recipe(data, ema=0.9)
    train(recipe, tmp_path / "full")
    train(recipe.model_copy(update={"checkpoints": "sharded"}), tmp_path / "sharded")
    assert checkpoints.has_shards(tmp_path / "sharded" / "checkpoints", 12)
    assert_equal_checkpoints(tmp_path / "sharded", tmp_path / "full")
    models = [TrainedRun.open(tmp_path / name).model for name in ("full", "sharded")]
    for weight, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(weight, other)


@pytest.mark.parametrize("order", [("full", "sharded"), ("sharded", "full")])
def test_form_may_change_when_a_run_is_resumed(data, tmp_path, order):
    recipe = make_recipe(data, ema=0.9, dropout=0.1)
    train(recipe, tmp_path / "whole")
    first, second = (recipe.model_copy(update={"checkpoints": form}) for form in order)
    train(first, tmp_path / "run", until=6)
    train(second, tmp_path / "run")
    assert_equal_checkpoints(tmp_path / "run", tmp_path / "whole")


def test_rewind_restores_a_sharded_checkpoint_without_optimizer_state(data, tmp_path):
    recipe = make_recipe(data, on_spike="rewind", checkpoints="sharded")
    train(recipe, tmp_path / "run", until=2)
    start = checkpoints.load(tmp_path / "run" / "checkpoints", 0)
    assert start.tensors["model"] and not start.tensors.get("optimizer")


@pytest.mark.parametrize("damage", ["missing", "changed", "left over"])
def test_damaged_shards_are_not_read(data, tmp_path, damage):
    recipe = make_recipe(data, checkpoints="sharded", keep=3)
    train(recipe, tmp_path)
    folder = tmp_path / "checkpoints"
    (shard,) = (folder / "step-12" / "model").iterdir()
    if damage == "missing":
        shard.unlink()
    elif damage == "changed":
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
    else:
        save_file({"more": torch.ones(2)}, shard.with_name("shard-00002.safetensors"))
    assert not checkpoints.is_valid(folder, 12)
    assert checkpoints.load(folder, 12) is None
    assert load_newest(tmp_path).step == 8


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_shards_of_two_processes_equal_a_full_checkpoint(data, tmp_path, parallel):
    # 15 features do not divide by 2, and the vocabulary has 13 or so tokens
    recipe = make_recipe(data, dim=15, heads=3, parallel=parallel, ema=0.9, dropout=0.1)
    run_to_end(recipe, tmp_path / "full", processes=2)
    recipe = recipe.model_copy(update={"checkpoints": "sharded"})
    run_to_end(recipe, tmp_path / "sharded", processes=2)
    shards = list((tmp_path / "sharded" / "checkpoints" / "step-12" / "model").iterdir())
    assert len(shards) == 2
    assert_equal_checkpoints(tmp_path / "sharded", tmp_path / "full")


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_shards_are_read_by_another_number_of_processes(data, tmp_path, parallel):
    settings = {"dim": 15, "heads": 3, "parallel": parallel, "checkpoints": "sharded"}
    recipe = make_recipe(data, steps=40, save_every=4, dropout=0.0, ema=0.9, **settings)
    train(recipe, tmp_path / "whole")
    assert run_and_kill(recipe, tmp_path / "run", when=("checkpoints/step-4", 0.0), processes=2)
    assert run_and_kill(recipe, tmp_path / "run", when=("checkpoints/step-16", 0.0), processes=1)
    run_to_end(recipe, tmp_path / "run", processes=2)
    assert read_losses(tmp_path / "run") == pytest.approx(read_losses(tmp_path / "whole"), rel=1e-5)


@pytest.mark.slow
def test_killed_run_with_shards_resumes_with_same_bits(data, tmp_path):
    settings = {"parallel": "fsdp", "checkpoints": "sharded", "dropout": 0.1}
    recipe = make_recipe(data, steps=60, save_every=4, **settings)
    run_to_end(recipe, tmp_path / "whole", processes=2)
    for step in (4, 20):
        when = (f"checkpoints/step-{step}", 0.02)
        assert run_and_kill(recipe, tmp_path / "run", when=when, processes=2)
    run_to_end(recipe, tmp_path / "run", processes=2)
    assert_equal_checkpoints(tmp_path / "run", tmp_path / "whole")
