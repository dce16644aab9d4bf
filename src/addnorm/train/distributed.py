"""Distributed training: process group, collective operations, DDP and FSDP.

`torchrun` starts several processes that all run the same program. `World` tells each process its
rank and offers the few collectives that training needs. With a single process they return at once,
so the trainer has no special case.

- `parallel=ddp` copies the model to each process and averages the gradients in each backward pass.
- `parallel=fsdp` shards the weights of each sub-layer over the processes (`DTensor`).
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from addnorm.core.errors import UserError
from addnorm.measure.sharded_norms import is_sharded
from addnorm.models import Model
from addnorm.train.device import pick_device

BACKENDS = {"cuda": "nccl"}
"""Communication backend by device type; gloo for all others."""
PROCESS_GROUPS: list[Any] = []
"""References to all process groups, kept until the process ends.

If a DDP module held the last reference, the destructor of the group would wait for its threads
while it holds the GIL, and those threads may be waiting for the GIL."""


@dataclass(frozen=True)
class World:
    """The processes of a run, as seen by one of them."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and runs callbacks."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        if self.size > 1:
            dist.barrier()

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def max_over_processes(self, values: list[Tensor | None]) -> None:
        """Replace each tensor by the elementwise maximum over all processes, in place."""
        if self.size > 1:
            for value in values:
                if value is not None:
                    dist.all_reduce(value, op=dist.ReduceOp.MAX)

    def broadcast(self, value: int) -> int:
        """Return the value of the main process."""
        if self.size == 1:
            return value
        buffer = torch.tensor(value, device=self.device)
        dist.broadcast(buffer, 0)
        return int(buffer)

    def any_process(self, value: bool) -> bool:
        """Return whether `value` is true in at least one process."""
        if self.size == 1:
            return value
        count = self.all_reduce(torch.tensor(float(value), device=self.device))
        return bool(count.item())

    def run_on_main(self, action: Callable[[], Any]) -> None:
        """Run `action` in the main process; if it fails there, raise in all processes.

        Without the second part the other processes would wait forever at the next collective.

        Raises:
            UserError: raised by `action`, or in the other processes because it failed
            OSError: raised by `action`
        """
        error: Exception | None = None
        if self.is_main:
            try:
                action()
            except (UserError, OSError) as problem:
                error = problem
        if self.any_process(error is not None):
            raise error or UserError("the main process could not start; see its error message")


@contextmanager
def init_distributed(device: str) -> Iterator[World]:
    """Join the process group that `torchrun` describes, if any; leave it on exit."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    torch_device = pick_device(device)
    if size == 1:
        yield World(device=torch_device)
        return
    if torch_device.type == "cuda":
        torch_device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(torch_device)
    dist.init_process_group(BACKENDS.get(torch_device.type, "gloo"))
    PROCESS_GROUPS.append(dist.group.WORLD)
    try:
        yield World(rank, size, torch_device)
    finally:
        dist.destroy_process_group()


def apply_fsdp(model: Model, world: World) -> None:
    """Shard the weights in place: each sub-layer as one unit, the remaining weights as another.

    Raises:
        UserError: the arrangement has scalar parameters, which FSDP cannot shard
    """
    scalars = [name for name, weight in model.named_parameters() if not weight.ndim]
    if scalars:
        raise UserError(
            f"parallel=fsdp cannot shard scalar parameters such as {scalars[0]}, and this "
            f"arrangement has {len(scalars)}; choose parallel=ddp"
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(world.device.type, (world.size,))
    for stack in model.stacks:
        for sublayer in stack.sublayers:
            fully_shard(sublayer, mesh=mesh)
    # By default FSDP reshards the root module only in the backward pass. A validation has none, so
    # the next training step would use the weights that were gathered for the validation.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    # The warning is about in-place changes of a sub-layer's output, and the stacks make none.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    register_fsdp_forward_method(model, "loss")  # training calls `loss` instead of `forward`


def wrap_ddp(objective: nn.Module, world: World) -> nn.Module:
    """Return a module that averages the gradients over all processes in each backward pass."""
    device_ids = [world.device] if world.device.type == "cuda" else None
    return DistributedDataParallel(objective, device_ids=device_ids)


def full_tensor(value: Tensor) -> Tensor:
    """Return a detached copy on the CPU; shards are gathered, so all processes must call this."""
    value = value.detach()
    gathered: Any = value  # a DTensor, if it is sharded
    return (gathered.full_tensor() if is_sharded(value) else value).cpu()


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor in the way `like` is sharded; return it unchanged if `like` is not."""
    if not is_sharded(like):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def no_sync(objective: nn.Module) -> AbstractContextManager[None]:
    """Return a context whose backward passes accumulate gradients without averaging them."""
    return objective.no_sync() if isinstance(objective, DistributedDataParallel) else nullcontext()
