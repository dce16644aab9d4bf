"""Several processes: who is here, how they share a model, and what they add up."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from addnorm.core.errors import UserError
from addnorm.models import Model
from addnorm.train.device import pick_device

BACKENDS = {"cuda": "nccl"}
PROCESS_GROUPS: list[Any] = []
"""Groups of processes that this one was in, kept to its end. If a model wrapped for several
processes were the last to hold one, torch would wait, holding Python's lock, for threads that may
be waiting for that lock."""


@dataclass(frozen=True)
class World:
    """The processes of a run; one alone unless `torchrun` started several."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and talks."""
        return self.rank == 0

    def barrier(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier()

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def broadcast(self, value: int) -> int:
        """What the first process says."""
        if self.size == 1:
            return value
        box = torch.tensor(value, device=self.device)
        dist.broadcast(box, 0)
        return int(box)

    def run_on_main(self, action: Callable[[], Any]) -> None:
        """Let the first process do something; if it refuses, no other one waits for it."""
        refused: Exception | None = None
        if self.is_main:
            try:
                action()
            except (UserError, OSError) as problem:
                refused = problem
        if self.any_process(refused is not None):
            raise refused or UserError("the first process could not begin; see what it said")

    def any_process(self, value: bool) -> bool:
        """Whether it is so for any process."""
        return (
            value
            if self.size == 1
            else bool(self.all_reduce(torch.tensor(float(value), device=self.device)).item())
        )


@contextmanager
def init_distributed(device: str) -> Iterator[World]:
    """Meet the other processes that `torchrun` started, if there are any."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    chosen = pick_device(device)
    if size == 1:
        yield World(device=chosen)
        return
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(chosen)
    dist.init_process_group(BACKENDS.get(chosen.type, "gloo"))
    PROCESS_GROUPS.append(dist.group.WORLD)
    try:
        yield World(rank, size, chosen)
    finally:
        dist.destroy_process_group()


def apply_fsdp(model: Model, world: World) -> None:
    """Spread the weights over the processes: each sub-layer by itself, and all the rest."""
    scalars = [name for name, weight in model.named_parameters() if not weight.ndim]
    if scalars:
        raise UserError(
            f"torch cannot shard a scalar such as {scalars[0]} ({len(scalars)} of them in this "
            "arrangement); choose parallel=ddp"
        )
    mesh = init_device_mesh(world.device.type, (world.size,))
    for stack in model.stacks:
        for sublayer in stack.sublayers:
            fully_shard(sublayer, mesh=mesh)
    # Also what is no sub-layer is given back after a forward: a validation has no backward that
    # would, and the next step would go on with old weights.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    # Nothing here changes what a sub-layer returned in place, which is what this one is about.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    register_fsdp_forward_method(model, "loss")  # which is called in place of forward


def wrap_ddp(objective: nn.Module, world: World) -> nn.Module:
    """The objective with gradients averaged over the processes at every backward."""
    device_ids = [world.device] if world.device.type == "cuda" else None
    return DistributedDataParallel(objective, device_ids=device_ids)


def full_tensor(value: Tensor) -> Tensor:
    """A tensor of which each process may have a shard, gathered on the CPU."""
    value = value.detach()
    return (value.full_tensor() if isinstance(value, DTensor) else value).cpu()


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, cut into shards as another one is."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def no_sync(objective: nn.Module) -> AbstractContextManager[None]:
    """A backward after which nothing is averaged yet, as more is to come for the same update."""
    return objective.no_sync() if isinstance(objective, DistributedDataParallel) else nullcontext()
