"""Where cells run: in processes of this machine, or on a Ray cluster."""

from addnorm.comparison.engines.base import Engine, Event
from addnorm.comparison.engines.local import LocalEngine
from addnorm.comparison.engines.ray import RayEngine
from addnorm.core.errors import UnknownName, unknown

ENGINES = ("local", "ray")


def make_engine(
    name: str, *, workers: int | None = None, address: str | None = None, limit: float = 600.0
) -> Engine:
    """The engine of a name. workers: cells at a time. limit: seconds without a sign of life."""
    if name == "local":
        return LocalEngine(workers=workers, limit=limit)
    if name == "ray":
        return RayEngine(workers=workers, address=address, limit=limit)
    raise UnknownName(unknown("engine", name, ENGINES))


__all__ = ["ENGINES", "Engine", "Event", "make_engine"]
