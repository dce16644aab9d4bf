"""Overhead of a `Monitor`: training time with and without it.

    OMP_NUM_THREADS=1 python benchmarks/monitor_overhead.py [BLOCKS]

There are two translation models: one of Multi30k size on batches of about 2,000 tokens, and one so
small that fixed costs dominate. Plain and monitored steps alternate, so that load on the machine
affects both; the cost of a measured step is divided by the default interval.
"""

import inspect
import statistics
import sys
import time

import torch
from torch import nn

from addnorm.measure import Monitor
from addnorm.models import build

SIZES = {
    "4+4 layers, 128 features": (80, {"vocab": 10_000, "dim": 128, "depth": 4, "ffn_dim": 256}),
    "2+2 layers, 32 features": (8, {"vocab": 200, "dim": 32, "depth": 2}),
}


def main(blocks: int) -> None:
    print("| model | step | median ms | / plain |\n|---|---|---|---|")
    summaries = [measure_overhead(name, blocks, *SIZES[name]) for name in SIZES]
    print("\n".join(summaries))


def measure_overhead(title: str, blocks: int, sentences: int, size: dict[str, int]) -> str:
    """Print the median times of one model's steps; return a line with the overhead."""
    torch.manual_seed(0)
    model = build(kind="seq2seq", heads=4, dropout=0.3, seed=0, **size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    source = torch.randint(4, size["vocab"], (sentences, 24))
    target = torch.randint(4, size["vocab"], (sentences, 25))
    lengths = torch.randint(8, 25, (sentences, 1))
    masks = {
        "source_mask": torch.arange(24) < lengths,
        "target_mask": torch.arange(24) < lengths.flip(0),
    }
    every = inspect.signature(Monitor).parameters["every"].default
    monitor = Monitor(model)

    def step(number: int | None) -> float:
        """Return the seconds of a step; `number=None` trains without a monitor."""
        start = time.perf_counter()
        optimizer.zero_grad()
        logits = model(source, target[:, :-1], **masks)
        nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten()).backward()
        if number is not None:
            monitor.before_update(number, source, target[:, :-1], **masks)
        optimizer.step()
        if number is not None:
            monitor.after_update()
        return time.perf_counter() - start

    step(every), step(None)
    kinds = {"plain": None, "not due": every + 1, "due": every}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for block in range(blocks):
        order = list(kinds) if block % 2 else list(reversed(kinds))
        for name in order:
            times[name].append(step(kinds[name]))
    plain = statistics.median(times["plain"])
    for name, each in times.items():
        median = statistics.median(each)
        print(f"| {title} | {name} | {1e3 * median:.1f} | {median / plain:.3f} |")
    extra = statistics.median(
        due - other for due, other in zip(times["due"], times["plain"], strict=True)
    )
    return f"{title}, every {every} steps: {100 * extra / every / plain:.2f} % more time"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
