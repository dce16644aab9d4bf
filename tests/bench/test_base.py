"""Ways take turns, and rows say how much faster ours is."""

import pytest
import torch

from addnorm.bench import Benchmark, measure_limits, run_benchmark
from addnorm.bench import base as module


def test_rows_are_ratios_of_one_round(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "process_time", lambda: now[0])

    def takes(seconds):
        def way():
            now[0] += seconds
            order.append(seconds)

        return way

    order = []
    bench = Benchmark(
        "b", lambda: {"addnorm": takes(2.0), "x": takes(3.0), "y": takes(1.0)}, {"x": 1.4}
    )
    x, y = run_benchmark(bench, threads=1, rounds=2)
    assert (x.ratio, x.goal, x.peer, x.taken, x.peer_taken) == (1.5, 1.4, "x", 2.0, 3.0)
    assert (y.ratio, y.goal, y.low, y.high) == (0.5, None, 0.5, 0.5)
    assert order == [2, 3, 1, 1, 3, 2, 2, 3, 1]  # once to warm up, then backwards and forwards
    assert x.to_dict() | {"ratio": 0} == {
        "name": "b", "ratio": 0, "goal": 1.4, "peer": "x", "threads": 1, "dtype": "float32",
        "low": 1.5, "high": 1.5, "taken": 2.0, "peer_taken": 3.0,
        "unit": "seconds",
    }  # fmt: skip


def test_threads_are_put_back_also_after_a_mistake():
    before = torch.get_num_threads()
    seen = []

    def make():
        seen.append(torch.get_num_threads())
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        list(run_benchmark(Benchmark("b", make, {}), threads=before + 1))
    assert seen == [before + 1] and torch.get_num_threads() == before


def test_limits_are_positive_and_told():
    found = measure_limits(1)
    assert min(found.matmul, found.matmul_bf16, found.bandwidth) > 0
    assert str(found).startswith("1 thread: products")
