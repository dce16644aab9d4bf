"""Limits of the machine: matrix products and memory bandwidth, measured in the same run."""

import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class HardwareLimits:
    """Speed of one machine at a number of threads.

    matmul, matmul_bf16: GFLOP/s of a product of square matrices in float32 and in bfloat16
    bandwidth: GB/s of a = b + c with tensors larger than the caches: two reads and one write
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


def measure_limits(threads: int) -> HardwareLimits:
    """Measure the limits as the best of several runs, which excludes most other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return HardwareLimits(
            threads,
            _matmul_gflops(1024, torch.float32),
            _matmul_gflops(512, torch.bfloat16),
            _memory_bandwidth(),
        )
    finally:
        torch.set_num_threads(before)


def _matmul_gflops(size: int, dtype: torch.dtype) -> float:
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    return 2 * size**3 / _best_time(lambda: a @ b) / 1e9


def _memory_bandwidth(size: int = 1 << 24) -> float:
    a, b, c = torch.empty(size), torch.rand(size), torch.rand(size)
    return 3 * a.nbytes / _best_time(lambda: torch.add(b, c, out=a)) / 1e9


def _best_time(function: object, repeats: int = 7) -> float:
    assert callable(function)
    function()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return min(taken)
