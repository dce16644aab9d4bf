"""Tensor parallelism equals one process, or is refused with the reason."""

import json
import os
import subprocess
import sys

import pytest
import torch

import addnorm
from addnorm.core.errors import UserError
from addnorm.train.distributed import World, full_tensor
from addnorm.train.recipe import Recipe
from addnorm.train.sharding.tensor_parallel import apply_tensor_parallel, clip_gradients
from addnorm.train.trainer import train
from tests.train.cases import make_recipe, write_number_corpus
from tests.train.sharding.tensor_parallel_process import CASES
from tests.train.test_distributed import build_command, read_losses

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
SIZE = {"kind": "lm", "vocab": 20, "dim": 24, "depth": 1, "heads": 6}
SPLIT = {"tensor_parallel": 2, "monitor_every": 0}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_number_corpus(tmp_path_factory.mktemp("corpus"), count=200).folder


def run(processes, *arguments):
    return subprocess.run(
        [*TORCHRUN, str(processes), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_outputs_and_gradients_equal_those_of_a_whole_model():
    done = run(2, "-m", "tests.train.sharding.tensor_parallel_process")
    assert done.returncode == 0, done.stderr
    differences = json.loads(done.stdout)
    assert differences.keys() == CASES.keys()
    assert max(differences.values()) < 1e-13, differences  # float64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (2, {"dropout": 0.1, "wiring": "post_ln"}),
        (2, {"optimizer": "muon", "accumulate": 2}),
        (4, {"parallel": "fsdp"}),
    ],
    ids=["tensor", "muon", "fsdp"],
)
@pytest.mark.parametrize("form", ["full", "sharded"])
def test_run_and_resume_reproduce_losses_of_one_process(data, tmp_path, processes, changes, form):
    settings = {"dropout": 0.0, "batch_tokens": 200, "ema": 0.9, "clip": 0.5, **SPLIT, **changes}
    recipe = make_recipe(data, steps=8, checkpoints=form, **settings)
    train(recipe.model_copy(update={"tensor_parallel": 1}), tmp_path / "one")
    # The first half in one process, so that whole weights are split when they are read.
    train(recipe.model_copy(update={"tensor_parallel": 1}), tmp_path / "many", until=4)
    done = run(processes, *build_command(recipe, tmp_path / "many")[1:])
    assert done.returncode == 0, done.stderr
    assert "tensor_parallel=2" in done.stderr
    for split in ("train", "valid"):
        assert read_losses(tmp_path / "many", split) == pytest.approx(
            read_losses(tmp_path / "one", split), rel=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "changes", "message"),
    [
        (2, {"heads": 1}, "heads: expected a multiple of 2, got 1"),
        (3, {}, "tensor_parallel: expected a divisor of the number of processes, 3, got 2"),
        (4, {}, "parallel: expected fsdp, because tensor_parallel=2 leaves 2 replicas"),
    ],
)
def test_wrong_sizes_are_refused_in_one_line(data, tmp_path, processes, changes, message):
    recipe = make_recipe(data, **SPLIT, **changes)
    done = run(processes, *build_command(recipe, tmp_path / "run")[1:])
    assert done.returncode != 0
    assert "addnorm: " in done.stderr and message in done.stderr
    assert "Traceback" not in done.stderr.split("ChildFailedError")[0].split("torch/")[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "heads: expected a multiple of 4, got 6"),
        ({"heads": 8, "kv_heads": 2}, "kv_heads: expected a multiple of 4, got 2"),
        ({"heads": 8, "ffn_dim": 50}, "hidden: expected a multiple of 4, got 50"),
        ({"heads": 8, "qk_norm": "rms"}, "qk_norm rms is computed over all heads"),
        ({"heads": 8, "qk_norm": "rms_head"}, "is a weight of heads or features"),
        ({"heads": 8, "positions": "alibi"}, "positions alibi add a bias to each head"),
        ({"heads": 8, "wiring": "sub_ln"}, "wiring sub_ln has a norm or scale inside"),
        ({"heads": 8, "wiring": "ngpt"}, "wiring ngpt has a norm or scale inside"),
        ({"heads": 8, "attention_dropout": 0.1}, "attention_dropout=0.1 would drop the same"),
        ({"heads": 8, "activation_dropout": 0.1}, "activation_dropout=0.1 would drop the same"),
        ({"heads": 8, "activation": "poly_norm"}, "activation poly_norm has weights or statistics"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_models_that_would_not_be_exact_are_refused(changes, message):
    model = addnorm.build(**SIZE | changes)
    before = [weight.clone() for weight in model.parameters()]
    with pytest.raises(UserError, match=f"tensor_parallel=4 would not be exact: .*{message}"):
        apply_tensor_parallel(model, World(size=4, tensor_parallel=4, mesh=object()))
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("changes", [{"compile": True}, {"monitor_every": 10}, {"qk_clip": 100}])
def test_recipe_refuses_what_needs_all_heads(changes):
    values = {"task": "lm", "data": "corpus", "tensor_parallel": 2, "monitor_every": 0} | changes
    with pytest.raises(UserError, match="tensor_parallel: expected compile=False, monitor_every=0"):
        Recipe.from_dict(values)


def test_clipping_of_plain_gradients_is_that_of_torch():
    weights = [torch.nn.Parameter(torch.randn(3, 4)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.randn(3, 4)
    others = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    for other, weight in zip(others, weights, strict=True):
        other.grad = weight.grad.clone()
    expected = torch.nn.utils.clip_grad_norm_(others, 0.5)
    assert clip_gradients(weights, 0.5) == float(full_tensor(expected))
    for other, weight in zip(others, weights, strict=True):
        assert torch.equal(other.grad, weight.grad)
