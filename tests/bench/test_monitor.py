"""Overhead of a monitor: how single steps add up to an interval."""

import pytest

from addnorm.bench import run_benchmark
from addnorm.bench.base import OURS, Benchmark
from addnorm.bench.base import time as clock_module
from addnorm.bench.monitor import PEER, build_candidates, make_benchmarks, time_intervals


def test_interval_has_one_measured_step(monkeypatch):
    now, steps = [0.0], []
    monkeypatch.setattr(clock_module, "process_time", lambda: now[0])

    def monitored():
        steps.append(OURS)
        now[0] += 1.1 if steps.count(OURS) % 2 else 6.1  # even steps are measured

    def plain():
        steps.append(PEER)
        now[0] += 1.0

    bench = Benchmark(
        "b", lambda: {OURS: monitored, PEER: plain}, {}, time_rounds=time_intervals, rounds=3
    )
    (row,) = run_benchmark(bench, threads=1)
    assert row.taken == pytest.approx(49 * 1.1 + 6.1)
    assert row.peer_taken == pytest.approx(50.0)
    assert row.ratio == pytest.approx(50 / (49 * 1.1 + 6.1))
    pairs = zip(steps[::2], steps[1::2], strict=True)
    assert all({one, other} == {OURS, PEER} for one, other in pairs)  # they take turns


def test_every_second_step_is_measured(monkeypatch):
    from addnorm.monitor.site_meter import SiteMeter

    measured = []
    original = SiteMeter.measure

    def measure(self, step, *args, **kwargs):
        measured.append(step)
        original(self, step, *args, **kwargs)

    monkeypatch.setattr(SiteMeter, "measure", measure)
    candidates = build_candidates(1, 8, own=True)
    for _ in range(6):
        candidates[OURS]()
    assert measured == [1, 2, 4, 6]


def test_goals_are_those_of_slow_steps():
    benches = {bench.name: bench for bench in make_benchmarks()}
    assert benches["monitor GPT-2 4 x 128"].goals == {PEER: pytest.approx(1 / 1.03)}
    assert benches["monitor GPT-2 2 x 32"].goals == {}
