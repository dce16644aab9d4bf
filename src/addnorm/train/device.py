"""What this machine has to compute with."""

import os

import torch

from addnorm.core.errors import UserError


def pick_device(name: str) -> torch.device:
    """`auto` takes CUDA, then MPS, then the CPU."""
    if name != "auto":
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as problem:
            first = str(problem).splitlines()[0]
            raise UserError(f"device {name!r} cannot be used ({first}); try device=auto") from None
        return device
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def count_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
