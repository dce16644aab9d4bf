"""Context managers and a decorator that keep a fit reproducible and free of side effects."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def rollback_on_error(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method to restore the attributes of its object if it raises or is interrupted."""

    @wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        attributes = args[0].__dict__
        saved = dict(attributes)
        try:
            return method(*args, **kwargs)
        except BaseException:
            attributes.clear()
            attributes.update(saved)
            raise

    return wrapper


@contextmanager
def torch_context(
    *, threads: int | None, seed: int | None = None, device: torch.device | None = None
) -> Iterator[None]:
    """Set the thread count and seed the random generators inside the block; restore both on exit.

    Args:
        threads: number of threads; None keeps the current one
        seed: seed of the generators of the CPU and of `device`; None keeps their state
        device: CUDA device to seed in addition to the CPU
    """
    previous_threads = torch.get_num_threads()
    cuda = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed all devices
            for each in cuda:
                with torch.cuda.device(each):
                    torch.cuda.manual_seed(seed)
        try:
            if threads is not None:
                torch.set_num_threads(threads)
            yield
        finally:
            torch.set_num_threads(previous_threads)
