"""Dry run: operations on tensors without values, to learn sizes of memory and numbers of FLOPs.

Kernels that read values, or that repeat the same operations chunk by chunk, then do neither.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_active = False


def is_dry_run() -> bool:
    """Return whether tensors have no values."""
    return _active


@contextmanager
def dry_run() -> Iterator[None]:
    """Make the block a dry run."""
    global _active
    before, _active = _active, True
    try:
        yield
    finally:
        _active = before
