"""Compute devices of this machine."""

import os

import torch

from addnorm.core.errors import UserError


def pick_device(name: str) -> torch.device:
    """Return the device of a name; `auto` prefers CUDA, then MPS, then the CPU.

    Raises:
        UserError: torch does not know the device, or it is not available
    """
    if name != "auto":
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as problem:
            reason = str(problem).splitlines()[0]
            raise UserError(f"device {name!r} cannot be used ({reason}); try device=auto") from None
        return device
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
