"""Benchmark runner: candidates take turns, and results are ratios of times of one round.

A ratio of two measurements that follow each other within milliseconds is robust against other work
on the machine and against changes of the clock frequency; absolute times are not.
"""

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch

Candidate = Callable[[], Any]
Candidates = dict[str, Candidate]
Clock = Callable[[], float]
OURS = "addnorm"
"""Name of our candidate; all others are peers."""


@dataclass(frozen=True)
class Row:
    """Result of a benchmark against one peer.

    ratio: median over rounds of the peer's time divided by ours; above 1 we are faster
    low, high: quartiles of the ratio
    goal: the ratio to reach; None without a goal
    taken, peer_taken: medians per call, in `unit`
    """

    name: str
    ratio: float
    goal: float | None
    peer: str
    threads: int
    dtype: str
    low: float
    high: float
    taken: float
    peer_taken: float
    unit: str = "seconds"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Benchmark:
    """Comparison of our implementation with peers that do the same work.

    build_candidates: builds the candidates; a peer that is not installed is left out
    goals: ratio to reach against each peer
    rounds: how often each candidate runs
    is_memory: whether candidates return the bytes they use instead of being timed
    time_rounds: function of the candidates, the number of rounds and a clock that times them
        itself and returns the seconds of each round; by default each candidate is called once
    """

    name: str
    build_candidates: Callable[[], Candidates]
    goals: dict[str, float]
    dtype: str = "float32"
    rounds: int = 15
    is_memory: bool = False
    time_rounds: Callable[[Candidates, int, Clock], dict[str, list[float]]] | None = None


def retain_freed_memory() -> None:
    """Make glibc keep freed memory, with the limits that it reaches by itself in a long run.

    Before that, a call that receives new pages from the kernel takes up to five times as long,
    which affects candidates at random.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        for option, limit in ((-3, 1 << 25), (-1, 1 << 26)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            library.mallopt(option, limit)


def run_benchmark(bench: Benchmark, *, threads: int, rounds: int | None = None) -> Iterator[Row]:
    """Run a benchmark and yield a row for each peer.

    Candidates take turns, in reversed order every other round. With one thread, the processor time
    is measured, which excludes other processes; with several threads, the wall-clock time.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        candidates = bench.build_candidates()
        clock = time.process_time if threads == 1 else time.perf_counter
        time_rounds = bench.time_rounds or _time_candidates
        times = (
            {name: [candidate()] for name, candidate in candidates.items()}
            if bench.is_memory
            else time_rounds(candidates, rounds or bench.rounds, clock)
        )
    finally:
        torch.set_num_threads(before)
    ours = times.pop(OURS)
    for peer, theirs in times.items():
        ratios = [other / own for other, own in zip(theirs, ours, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        yield Row(
            bench.name,
            statistics.median(ratios),
            bench.goals.get(peer),
            peer,
            threads,
            bench.dtype,
            low,
            high,
            statistics.median(ours),
            statistics.median(theirs),
            "bytes" if bench.is_memory else "seconds",
        )


def _time_candidates(candidates: Candidates, rounds: int, clock: Clock) -> dict[str, list[float]]:
    for candidate in candidates.values():
        candidate()  # warm-up: fills caches and compiles
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds):
        for name in list(candidates) if number % 2 else list(reversed(candidates)):
            start = clock()
            candidates[name]()
            times[name].append(clock() - start)
    return times
