"""What a layer keeps for the backward does not depend on how many there are."""

import pytest
import torch
from torch import nn

from addnorm.bench import depth, run_benchmark
from addnorm.bench.depth import LINEAR_GOAL, PEER, QUADRATIC
from addnorm.wirings import registry


@pytest.fixture
def shallower(monkeypatch):
    monkeypatch.setattr(depth, "DEEP", 24)


def test_every_wiring_is_measured_and_those_that_look_back_have_no_goal():
    benches = {bench.name: bench for bench in depth.benches()}
    assert set(benches) == {f"depth {name}, {what}" for name in registry for what in KINDS}
    assert set(registry) > QUADRATIC
    assert benches["depth dlcl, time"].goals == {} and benches["depth b2t, time"].goals


KINDS = ("time", "memory")


@pytest.mark.parametrize("name", sorted(set(registry) - QUADRATIC))
def test_memory_is_linear_in_depth(name, shallower):
    (bench,) = (each for each in depth.benches() if each.name == f"depth {name}, memory")
    (row,) = run_benchmark(bench, threads=1)
    assert (
        LINEAR_GOAL < row.ratio < 1 / LINEAR_GOAL and row.goal == LINEAR_GOAL and row.peer == PEER
    )


def test_what_is_kept_is_counted_once_and_without_weights():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            y = x * self.weight  # keeps x and the weight
            return y * y + y.exp()  # keeps y twice, and exp(y)

    assert depth.saved_bytes(Twice(), torch.randn(5, 8)) == 2 * 5 * 8 * 4


def test_time_is_taken_of_as_many_layers(shallower):
    ways = depth.build_candidates("pre_ln")
    for way in ways.values():
        assert way() is None
