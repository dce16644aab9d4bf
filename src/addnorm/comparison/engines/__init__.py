"""Engines: run cells in processes on this machine, on a Ray cluster or as jobs of SLURM."""

from dataclasses import replace

from addnorm.comparison.engines.base import Engine, Event
from addnorm.comparison.engines.local import LocalEngine
from addnorm.comparison.engines.ray import RayEngine
from addnorm.comparison.engines.slurm import SlurmEngine
from addnorm.comparison.engines.slurm_script import SlurmOptions
from addnorm.core.errors import UnknownNameError, UserError, unknown_name_message

ENGINES = ("local", "ray", "slurm")


def make_engine(
    name: str,
    *,
    workers: int | None = None,
    address: str | None = None,
    timeout: float = 600.0,
    gpus_per_cell: int | str | None = None,
    slurm: SlurmOptions | None = None,
) -> Engine:
    """Create an engine by name.

    Args:
        name: local, ray or slurm
        workers: cells at the same time; by default one per GPU or core, or what SLURM decides
        address: address of the Ray cluster
        timeout: seconds without progress before a cell is killed
        gpus_per_cell: GPUs of a cell, or different ones by axis, such as `1,depth=48:4`; by default
            one if there are any, and none for SLURM
        slurm: options of the jobs of SLURM
    """
    if name not in ENGINES:
        raise UnknownNameError(unknown_name_message("engine", name, ENGINES))
    if address is not None and name != "ray":
        raise UserError(f"address: expected with engine ray only, got {address}; leave it out")
    if slurm is not None and name != "slurm":
        raise UserError(f"slurm: expected options with engine slurm only, got engine {name}")
    if name == "slurm":
        options = slurm or SlurmOptions()
        if gpus_per_cell is not None:
            options = replace(options, gpus_per_cell=gpus_per_cell)
        return SlurmEngine(workers=workers, timeout=timeout, options=options)
    if name == "ray":
        return RayEngine(
            workers=workers, address=address, timeout=timeout, gpus_per_cell=gpus_per_cell
        )
    return LocalEngine(workers=workers, timeout=timeout, gpus_per_cell=gpus_per_cell)


__all__ = ["ENGINES", "Engine", "Event", "SlurmOptions", "make_engine"]
