"""Overhead of a monitor: steps of training with and without it, on a foreign and an own model."""

import functools
import importlib.util
import statistics
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from addnorm.bench.base import OURS, Benchmark, Candidates, Clock
from addnorm.core.errors import UserError

EVERY = 50
STEPS_A_ROUND = 5
"""Steps of each kind whose median a round takes."""
PEER = "without a monitor"
MAX_OVERHEAD = 0.03
"""Goal for steps of 100 ms and more."""


def make_benchmarks() -> Iterator[Benchmark]:
    """Yield benchmarks of one interval: 50 steps, one of them measured; the goal is 3 %."""
    goals = {PEER: 1 / (1 + MAX_OVERHEAD)}
    for name, depth, dim, own in (
        ("monitor GPT-2 4 x 128", 4, 128, False),
        ("monitor GPT-2 2 x 32", 2, 32, False),
        ("monitor addnorm 4 x 128", 4, 128, True),
    ):
        yield Benchmark(
            name,
            functools.partial(build_candidates, depth, dim, own=own),
            goals if dim == 128 else {},
            rounds=9,
            time_rounds=time_intervals,
        )


def build_candidates(depth: int, dim: int, *, own: bool = False) -> Candidates:
    """Build both candidates: one step of a model on a batch of 16 x 64 tokens.

    The monitor measures every second step; `time_intervals` weighs the two kinds of steps.
    """
    from addnorm.monitor import Monitor

    steps: dict[str, Callable[[], None]] = {}
    for name in (OURS, PEER):
        model = _make_model(depth, dim, own=own)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        monitor = Monitor(model, optimizer, every=2, doctor=False) if name == OURS else None
        steps[name] = _make_step(model, optimizer, monitor)
    return dict(steps)


def time_intervals(candidates: Candidates, rounds: int, clock: Clock) -> dict[str, list[float]]:
    """Return the seconds of an interval of `EVERY` steps, for each round.

    A measured step takes longer than the others by less than two such intervals of a busy machine
    differ. So single steps take turns, with and without a monitor, and their medians are added up:
    one measured step and `EVERY` - 1 others.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for step in (OURS, PEER, OURS, PEER):
        candidates[step]()  # warm-up: finds the sites, and leaves an odd step to follow

    def time_step(name: str) -> float:
        start = clock()
        candidates[name]()
        return clock() - start

    for number in range(rounds):
        plain: list[float] = []
        others: list[float] = []
        measured: list[float] = []
        for _ in range(STEPS_A_ROUND):
            for own in (others, measured):
                pair: list[tuple[str, list[float]]] = [(OURS, own), (PEER, plain)]
                for name, seconds in pair if number % 2 else pair[::-1]:
                    seconds.append(time_step(name))
        interval = (EVERY - 1) * statistics.median(others) + statistics.median(measured)
        times[OURS].append(interval)
        times[PEER].append(EVERY * statistics.median(plain))
    return times


def _make_model(depth: int, dim: int, *, own: bool) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if own:
            from addnorm.models import build

            return build("gpt2", depth=depth, dim=dim, heads=4, vocab=1000, dropout=0.1)
        if not importlib.util.find_spec("transformers"):
            raise UserError("the benchmark requires transformers; run pip install transformers")
        transformers: Any = import_module("transformers")  # untyped
        config = transformers.GPT2Config(
            n_layer=depth, n_embd=dim, n_head=4, vocab_size=1000, n_positions=64, use_cache=False,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)


def _make_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, monitor: Any
) -> Callable[[], None]:
    """Return a function that trains one step."""
    ids = torch.randint(1000, (16, 64), generator=torch.Generator().manual_seed(0))
    model.train()

    def step() -> None:
        out: Any = model(ids)
        logits = getattr(out, "logits", out)
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if monitor is not None:
            monitor.step(loss)

    return step
