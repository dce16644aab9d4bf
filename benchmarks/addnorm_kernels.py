"""Dropout + add + norm of the native library against torch, eager and compiled.

    python benchmarks/addnorm_kernels.py [--rounds 60] [--json] [--threads 1] [--no-compile]

Forward and backward. Ways take turns in one process, the order reversed every other round; a way's
time is the 20th percentile of its rounds in seconds of CPU time of the thread (with one thread; of
the clock with more), since the machine is shared; a ratio is peer / own, above 1 the library is
faster. glibc is told to keep freed memory, for all ways alike, so that no page faults are measured.
The limits of the machine (product of matrices, memory) are measured in the same run.
"""

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from addnorm.kernels import add_norm as module
from addnorm.kernels import native
from addnorm.kernels.add_norm import add_norm
from addnorm.kernels.formula import Formula

Way = Callable[[], object]
SHAPES = ((1024, 64), (2048, 256), (4096, 512))
RATE = 0.1
# (RMSNorm, dropout, peer): at least so many times as fast
GOALS = {
    (False, True, "eager"): 4.0,
    (True, True, "eager"): 8.0,
    (False, False, "eager"): 1.3,
    (False, False, "compile"): 2.0,
}


def main(rounds: int, threads: int, *, compiled: bool, as_json: bool) -> None:
    """Print a table, or rows."""
    keep_memory()
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    say = (lambda *_: None) if as_json else print
    say(f"torch {torch.__version__}, threads {threads}, {rounds} rounds; {native.available().why}")
    for line in limits(rounds):
        say(line)
    say("\n| what | dtype | shape | own us | peer | peer us | times as fast | goal |")
    say("|---|---|---|---|---|---|---|---|")
    for rms, rate in ((False, RATE), (True, RATE), (False, 0.0), (True, 0.0)):
        for dtype in (torch.float32, torch.bfloat16):
            for rows, dim in SHAPES:
                taken = timed(ways(rms, rate, dtype, rows, dim, compiled), rounds, threads)
                own = taken.pop("own")
                name = f"{'dropout+' if rate else ''}add+{'RMSNorm' if rms else 'LayerNorm'}"
                for peer, seconds in taken.items():
                    row = {
                        "name": f"{name} {rows}x{dim}",
                        "ratio": round(seconds / own, 2),
                        "goal": GOALS.get((rms, bool(rate), peer)),
                        "peer": f"torch {peer}",
                        "threads": threads,
                        "dtype": str(dtype).removeprefix("torch."),
                    }
                    if as_json:
                        print(json.dumps(row), flush=True)
                    say(
                        f"| {name} | {row['dtype']} | {rows}x{dim} | {1e6 * own:.0f} | {peer} | "
                        f"{1e6 * seconds:.0f} | {row['ratio']} | {row['goal'] or ''} |"
                    )
                sys.stdout.flush()


def ways(
    rms: bool, rate: float, dtype: torch.dtype, rows: int, dim: int, compiled: bool
) -> dict[str, Way]:
    """Ours at any size, and torch's."""
    module.LEAST = module.LEAST_BARE = 1
    x, f = (torch.randn(rows, dim).to(dtype).requires_grad_() for _ in range(2))
    weight = torch.randn(dim).to(dtype).requires_grad_()
    bias = None if rms else torch.randn(dim).to(dtype).requires_grad_()
    inputs = [each for each in (x, f, weight, bias) if each is not None]
    upstream = torch.randn(rows, dim).to(dtype)
    formula = Formula(rms, weight, bias, 1e-5)

    def plain(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        s = x + (F.dropout(f, rate) if rate else f)
        return (
            F.rms_norm(s, (dim,), weight, 1e-5)
            if rms
            else F.layer_norm(s, (dim,), weight, bias, 1e-5)
        )

    def both(function: Callable[..., torch.Tensor]) -> Way:
        return lambda: torch.autograd.grad(function(x, f), inputs, upstream)

    found = {"own": both(lambda x, f: add_norm(x, f, formula, rate=rate)), "eager": both(plain)}
    if compiled:
        torch._dynamo.reset()
        found["compile"] = both(torch.compile(plain, dynamic=False))
    return found


def timed(found: dict[str, Way], rounds: int, threads: int) -> dict[str, float]:
    """The 20th percentile of each, taking turns."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    for way in found.values():
        for _ in range(3):
            way()
    times: dict[str, list[float]] = {name: [] for name in found}
    for number in range(rounds):
        for name in list(found) if number % 2 else list(reversed(found)):
            start = clock()
            found[name]()
            times[name].append(clock() - start)
    return {name: sorted(taken)[len(taken) // 5] for name, taken in times.items()}


def limits(rounds: int) -> list[str]:
    """What the machine can do at most, at the moment."""
    size, count = 1024, 1 << 24
    a, b, c = torch.randn(size, size), torch.ones(count), torch.empty(count)
    near, to = torch.ones(1 << 19), torch.empty(1 << 19)
    taken = timed(
        {"product": lambda: a @ a, "far": lambda: c.copy_(b), "near": lambda: to.copy_(near)},
        max(5, rounds // 4),
        torch.get_num_threads(),
    )
    return [
        f"matmul: {2 * size**3 / taken['product'] / 1e9:.0f} GFLOP/s in float32",
        f"memory: {8 * count / taken['far'] / 1e9:.1f} GB/s copying 64 MB, "
        f"{8 * len(near) / taken['near'] / 1e9:.1f} GB/s copying 2 MB",
    ]


def keep_memory() -> None:
    """No munmap and no trimming, where the C library is glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    main(given.rounds, given.threads, compiled=not given.no_compile, as_json=given.json)
