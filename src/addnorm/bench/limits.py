"""What the machine itself can do, measured in the same run."""

import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Limits:
    """Of one machine with a number of threads.

    matmul: GFLOP/s of a product of two square matrices
    bandwidth: GB/s of a = b + c with tensors larger than the caches, two read and one written
    """

    threads: int
    matmul: float
    matmul_bf16: float
    bandwidth: float

    def __str__(self) -> str:
        return (
            f"{self.threads} thread{'s' * (self.threads > 1)}: products {self.matmul:.0f} GFLOP/s"
            f" in float32, {self.matmul_bf16:.0f} in bfloat16; memory {self.bandwidth:.1f} GB/s"
        )


def limits(threads: int) -> Limits:
    """The best of several tries each, so that other work on the machine matters less."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return Limits(
            threads, _products(1024, torch.float32), _products(512, torch.bfloat16), _bandwidth()
        )
    finally:
        torch.set_num_threads(before)


def _products(size: int, dtype: torch.dtype) -> float:
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    return 2 * size**3 / _best(lambda: a @ b) / 1e9


def _bandwidth(size: int = 1 << 24) -> float:
    a, b, c = torch.empty(size), torch.rand(size), torch.rand(size)
    return 3 * a.nbytes / _best(lambda: torch.add(b, c, out=a)) / 1e9


def _best(way: object, tries: int = 7) -> float:
    assert callable(way)
    way()
    taken = []
    for _ in range(tries):
        start = time.perf_counter()
        way()
        taken.append(time.perf_counter() - start)
    return min(taken)
