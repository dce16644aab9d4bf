"""Overhead of a monitor: steps of training with and without it, on a foreign and an own model."""

import importlib.util
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from addnorm.bench.base import OURS, Benchmark, Candidates
from addnorm.core.errors import UserError

EVERY = 50
PEER = "without a monitor"
MAX_OVERHEAD = 0.03
"""Goal for steps of 100 ms and more."""


def make_benchmarks() -> Iterator[Benchmark]:
    """Yield benchmarks of one interval: 50 steps, one of them measured; the goal is 3 %."""
    goals = {PEER: 1 / (1 + MAX_OVERHEAD)}
    yield Benchmark("monitor GPT-2 4 x 128", lambda: build_candidates(4, 128), goals, rounds=3)
    yield Benchmark("monitor GPT-2 2 x 32", lambda: build_candidates(2, 32), {}, rounds=5)
    yield Benchmark("monitor addnorm 4 x 128", lambda: build_candidates(4, 128, own=True), goals,
                    rounds=3)  # fmt: skip


def build_candidates(depth: int, dim: int, *, own: bool = False) -> Candidates:
    """Build both candidates: 50 steps of one model on batches of 16 x 64 tokens."""
    from addnorm.monitor import Monitor

    steps: dict[str, Callable[[], None]] = {}
    for name in (OURS, PEER):
        model = _make_model(depth, dim, own=own)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        monitor = Monitor(model, optimizer, every=EVERY, doctor=False) if name == OURS else None
        steps[name] = _make_interval(model, optimizer, monitor)
    return dict(steps)


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


def _make_interval(
    model: nn.Module, optimizer: torch.optim.Optimizer, monitor: Any
) -> Callable[[], None]:
    """Return a function that trains one interval, which contains one measured step."""
    ids = torch.randint(1000, (16, 64), generator=torch.Generator().manual_seed(0))
    model.train()

    def interval() -> None:
        for _ in range(EVERY):
            out: Any = model(ids)
            logits = getattr(out, "logits", out)
            loss = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            if monitor is not None:
                monitor.step(loss)

    return interval
