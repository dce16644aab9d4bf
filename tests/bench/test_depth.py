"""Depth benchmark: memory saved for the backward is linear in the number of layers."""

import pytest
import torch
from torch import nn

from addnorm.bench import depth, run_benchmark
from addnorm.bench.depth import LINEAR_GOAL, PEER, QUADRATIC
from addnorm.wirings import registry


@pytest.fixture
def reduced_depth(monkeypatch):
    monkeypatch.setattr(depth, "DEEP", 24)


def test_every_wiring_is_measured_and_quadratic_ones_have_no_goal():
    benches = {bench.name: bench for bench in depth.make_benchmarks()}
    assert set(benches) == {f"depth {name}, {kind}" for name in registry for kind in KINDS}
    assert set(registry) > QUADRATIC
    assert benches["depth dlcl, time"].goals == {} and benches["depth b2t, time"].goals


KINDS = ("time", "memory")


@pytest.mark.parametrize("name", sorted(set(registry) - QUADRATIC))
def test_memory_is_linear_in_depth(name, reduced_depth):
    (bench,) = (each for each in depth.make_benchmarks() if each.name == f"depth {name}, memory")
    (row,) = run_benchmark(bench, threads=1)
    assert (
        LINEAR_GOAL < row.ratio < 1 / LINEAR_GOAL and row.goal == LINEAR_GOAL and row.peer == PEER
    )


def test_saved_bytes_counts_storages_once_without_weights():
    class ReusesActivation(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            y = x * self.weight  # saves x and the weight
            return y * y + y.exp()  # saves y twice, and exp(y)

    assert depth.saved_bytes(ReusesActivation(), torch.randn(5, 8)) == 2 * 5 * 8 * 4


def test_time_candidates_run(reduced_depth):
    candidates = depth.build_candidates("pre_ln")
    for candidate in candidates.values():
        assert candidate() is None
