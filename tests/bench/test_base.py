"""Benchmark runner: order of candidates, ratios and thread counts."""

import pytest
import torch

from addnorm.bench import Benchmark, measure_limits, run_benchmark
from addnorm.bench import base as module


def test_rows_are_ratios_within_one_round(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module.time, "process_time", lambda: clock[0])

    def make_candidate(seconds):
        def candidate():
            clock[0] += seconds
            order.append(seconds)

        return candidate

    order = []
    seconds = {"addnorm": 2.0, "x": 3.0, "y": 1.0}
    bench = Benchmark(
        "b", lambda: {name: make_candidate(each) for name, each in seconds.items()}, {"x": 1.4}
    )
    x, y = run_benchmark(bench, threads=1, rounds=2)
    assert (x.ratio, x.goal, x.peer, x.taken, x.peer_taken) == (1.5, 1.4, "x", 2.0, 3.0)
    assert (y.ratio, y.goal, y.low, y.high) == (0.5, None, 0.5, 0.5)
    assert order == [2, 3, 1, 1, 3, 2, 2, 3, 1]  # warm-up, then reversed order, then forward order
    assert x.to_dict() | {"ratio": 0} == {
        "name": "b", "ratio": 0, "goal": 1.4, "peer": "x", "threads": 1, "dtype": "float32",
        "low": 1.5, "high": 1.5, "taken": 2.0, "peer_taken": 3.0,
        "unit": "seconds",
    }  # fmt: skip


def test_thread_count_is_restored_after_error():
    before = torch.get_num_threads()
    thread_counts = []

    def build_candidates():
        thread_counts.append(torch.get_num_threads())
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        list(run_benchmark(Benchmark("b", build_candidates, {}), threads=before + 1))
    assert thread_counts == [before + 1] and torch.get_num_threads() == before


def test_limits_are_positive_and_printable():
    limits = measure_limits(1)
    assert min(limits.matmul, limits.matmul_bf16, limits.bandwidth) > 0
    assert str(limits).startswith("1 thread: products")
