"""Limit of the memory that a trial run may allocate."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

FREE_FRACTION = 0.5
"""Part of the available memory that a trial run may allocate."""


@contextmanager
def limit_memory() -> Iterator[None]:
    """Make large allocations inside the block raise an error.

    A model may read a guessed id as a size. The kernel would grant the allocation and then kill the
    process without a message. Without /proc, as on macOS, there is no limit.
    """
    budget = _available_bytes()
    if resource is None or budget is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    limit = min([_address_space_bytes() + int(FREE_FRACTION * budget), *limits])
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kilobytes = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return next((1024 * number for number in kilobytes), None)


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
