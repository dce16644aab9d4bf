"""Engines: run cells in processes on this machine or on a Ray cluster."""

from addnorm.comparison.engines.base import Engine, Event
from addnorm.comparison.engines.local import LocalEngine
from addnorm.comparison.engines.ray import RayEngine
from addnorm.core.errors import UnknownNameError, UserError, unknown_name_message

ENGINES = ("local", "ray")


def make_engine(
    name: str, *, workers: int | None = None, address: str | None = None, timeout: float = 600.0
) -> Engine:
    """Create an engine by name.

    Args:
        name: local or ray.
        workers: Cells at the same time; by default one per GPU, or one per core.
        address: Address of the Ray cluster.
        timeout: Seconds without progress before a cell is killed.
    """
    if name == "local":
        if address is not None:
            raise UserError(f"address: expected with engine ray only, got {address}; leave it out")
        return LocalEngine(workers=workers, timeout=timeout)
    if name == "ray":
        return RayEngine(workers=workers, address=address, timeout=timeout)
    raise UnknownNameError(unknown_name_message("engine", name, ENGINES))


__all__ = ["ENGINES", "Engine", "Event", "make_engine"]
