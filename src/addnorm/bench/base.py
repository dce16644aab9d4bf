"""What every benchmark has in common: ways that take turns, and rows of ratios."""

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
OURS = "addnorm"
"""The way that is ours; all others are peers."""


@dataclass(frozen=True)
class Row:
    """How much faster we are than a peer.

    ratio: median over the rounds of the peer's time by ours; above 1 we are faster
    low, high: its quartiles
    goal: the ratio that we want; None where there is none
    taken, peer_taken: medians of a call, in `unit`
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
        """As plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Benchmark:
    """One comparison: a way of ours and those of peers that do the same work.

    make: builds the ways; a peer that is not installed is left out
    goals: the ratio wanted against each peer
    rounds: how often the ways take turns
    counted: whether ways return what they take, in bytes, and are not timed
    """

    name: str
    build_candidates: Callable[[], Candidates]
    goals: dict[str, float]
    dtype: str = "float32"
    rounds: int = 15
    is_memory: bool = False


def retain_freed_memory() -> None:
    """Have glibc keep what is freed, with the limits that it comes to by itself in a long run.

    Till then a call that gets new pages takes up to five times as long, ours or a peer's as chance
    has it.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        for option, limit in ((-3, 1 << 25), (-1, 1 << 26)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            library.mallopt(option, limit)


def run_benchmark(bench: Benchmark, *, threads: int, rounds: int | None = None) -> Iterator[Row]:
    """A row for each peer.

    Ways take turns, the order reversed every other round, and a ratio is of one round. With one
    thread it is processor time that counts, to which other work on the machine matters less; with
    several it is the clock's.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = bench.build_candidates()
        times = (
            {name: [way()] for name, way in made.items()}
            if bench.is_memory
            else _time_candidates(made, rounds or bench.rounds, single_threaded=threads == 1)
        )
    finally:
        torch.set_num_threads(before)
    ours = times.pop(OURS)
    for peer, taken in times.items():
        ratios = [theirs / own for theirs, own in zip(taken, ours, strict=True)]
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
            statistics.median(taken),
            "bytes" if bench.is_memory else "seconds",
        )


def _time_candidates(
    candidates: Candidates, rounds: int, *, single_threaded: bool
) -> dict[str, list[float]]:
    clock = time.process_time if single_threaded else time.perf_counter
    for way in candidates.values():
        way()  # what is done once, such as filling caches, is no part of it
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds):
        for name in list(candidates) if number % 2 else list(reversed(candidates)):
            start = clock()
            candidates[name]()
            times[name].append(clock() - start)
    return times
