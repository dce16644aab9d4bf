"""Benchmarks against torch and other libraries, as ratios measured in one run."""

from addnorm.bench.base import Benchmark, Candidates, Row, retain_freed_memory, run_benchmark
from addnorm.bench.hardware_limits import HardwareLimits, measure_limits

__all__ = [
    "Benchmark",
    "HardwareLimits",
    "Row",
    "Candidates",
    "retain_freed_memory",
    "measure_limits",
    "run_benchmark",
]
