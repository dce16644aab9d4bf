"""Attention over packed sequences against torch's over padded ones, forward and backward.

    python benchmarks/attention.py [--rounds 21] [--threads 1] [--dtype float32] [--json]

Two batches of 64 sequences: of 5 to 100 tokens in random order, as sentences come, which torch has
to pad; and all of the mean length, as from buckets, where torch computes nothing in vain. Ways take
turns, the order reversed every other round; a ratio is the median of the ratios within a round, and
above 1 is faster than torch. One thread: seconds of CPU time, so that other work on the machine
counts little; more threads: seconds. The limit is a product of 512 x 512 matrices in the same run.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.kernels import native
from addnorm.kernels.varlen import Bounds, varlen_attention

BATCH, TIMES = 64, 4
GOALS = {"random": 3.0, "bucketed": 1.0}

Way = Callable[[], object]


def main() -> None:
    """Print a table, or rows of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    if not options.json:
        print(f"torch {torch.__version__}, {native.available().why}, {options.threads} threads,")
        print(f"{options.dtype}, {options.rounds} rounds, milliseconds of a forward and backward\n")
        print("| lengths | heads | torch | addnorm | times as fast | share of the limit |")
        print("|---|---|---|---|---|---|")
    for dim, causal, order in product((64, 16), (False, True), GOALS):
        lengths = sentences() if order == "random" else [28] * BATCH
        ways = {
            "limit": limit(dtype),
            "torch": padded(lengths, dim, causal, dtype),
            "addnorm": packed(lengths, dim, causal, dtype),
        }
        times = measured(ways, options.rounds, options.threads)
        ratio = middle(a / b for a, b in zip(times["torch"], times["addnorm"], strict=True))
        # Seven products of L x L x K; half of each is hidden if causal.
        work = 7 * 2 * sum(n * n for n in lengths) * 4 * dim * TIMES / (2 if causal else 1)
        limits = (512**3 * 2 * TIMES / each for each in times["limit"])
        share = middle(
            work / mine / most for mine, most in zip(times["addnorm"], limits, strict=True)
        )
        name = f"attention, {order}, 4 x {dim}{', causal' if causal else ''}"
        if options.json:
            goal = {"goal": GOALS[order], "peer": f"SDPA, {order}"}
            row = {"name": name, "ratio": ratio, "share": share, **goal}
            print(json.dumps(row | {"threads": options.threads, "dtype": options.dtype}))
        else:
            one, two = (1e3 * middle(times[each]) / TIMES for each in ("torch", "addnorm"))
            heads = f"4 x {dim}{', causal' if causal else ''}"
            print(f"| {order} | {heads} | {one:.2f} | {two:.2f} | {ratio:.3g} | {share:.0%} |")


def sentences() -> list[int]:
    """Lengths as sentences have them: 5 to 100, 28 in the mean."""
    chance = torch.Generator().manual_seed(0)
    drawn = torch.empty(BATCH).log_normal_(3.15, 0.65, generator=chance)
    return [int(each) for each in drawn.round().clamp(5, 100).tolist()]


def limit(dtype: torch.dtype) -> Way:
    """What the machine can multiply."""
    matrix = torch.randn(512, 512, dtype=dtype)
    return lambda: [matrix @ matrix for _ in range(TIMES)]


def heads(tokens: tuple[int, ...], dim: int, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v, as a projection leaves them, and a gradient: (..., heads, tokens, K)."""
    drawn = [torch.randn(*tokens, 4, dim, dtype=dtype).transpose(-3, -2) for _ in range(4)]
    return [each.requires_grad_() for each in drawn[:3]] + drawn[3:]


def padded(lengths: list[int], dim: int, causal: bool, dtype: torch.dtype) -> Way:
    """torch's own, with a mask where lengths differ."""
    *inputs, upstream = heads((len(lengths), max(lengths)), dim, dtype)
    mask = None
    if min(lengths) < max(lengths):
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None, None, None]
        mask = mask & torch.ones(2 * [max(lengths)], dtype=torch.bool).tril() if causal else mask

    def run() -> None:
        for _ in range(TIMES):
            y = F.scaled_dot_product_attention(
                *inputs, attn_mask=mask, is_causal=causal and mask is None
            )
            torch.autograd.grad(y, inputs, upstream)

    return run


def packed(lengths: list[int], dim: int, causal: bool, dtype: torch.dtype) -> Way:
    """Ours."""
    bounds = Bounds.of(lengths)
    *inputs, upstream = heads((sum(lengths),), dim, dtype)

    def run() -> None:
        for _ in range(TIMES):
            y = varlen_attention(*inputs, bounds, bounds, causal=causal, scale=dim**-0.5)
            torch.autograd.grad(y, inputs, upstream)

    return run


def measured(ways: dict[str, Way], rounds: int, threads: int) -> dict[str, list[float]]:
    """Seconds of every way in every round."""
    clock = time.process_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for number in range(rounds):
        for name in list(ways) if number % 2 else list(reversed(ways)):
            start = clock()
            ways[name]()
            times[name].append(clock() - start)
    return times


def middle(values: object) -> float:
    return statistics.median(values)  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
