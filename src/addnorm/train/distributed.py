"""Distributed training: process group, collective operations, DDP.

`torchrun` starts several processes that all run the same program. `World` tells each process its
rank and offers the few collectives that training needs. With a single process they return at once,
so the trainer has no special case.

- `parallel=ddp` copies the model to each process and averages the gradients in each backward pass.
- `parallel=fsdp` shards the weights of each sub-layer over the processes
  (`addnorm.train.sharding.fsdp`).
- `tensor_parallel=N` splits heads and feed-forward features of a replica over N processes, which
  read the same rows (`addnorm.train.sharding.tensor_parallel`).

    tensor_parallel=2, 4 processes        tensor 0    tensor 1
                             replica 0    rank 0      rank 1
                             replica 1    rank 2      rank 3
"""

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from addnorm.core.errors import UserError
from addnorm.measure.sharded_norms import is_sharded
from addnorm.train.device import pick_device

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

BACKENDS = {"cuda": "nccl"}
"""Communication backend by device type; gloo for all others."""
PROCESS_GROUPS: list[Any] = []
"""References to all process groups, kept until the process ends.

If a DDP module held the last reference, the destructor of the group would wait for its threads
while it holds the GIL, and those threads may be waiting for the GIL."""
VISIBLE_SECONDS = 10.0
"""How long a file of another host may take to appear in a network file system."""
START_HINT = "start the processes with torchrun, or unset WORLD_SIZE and RANK"


@dataclass(frozen=True)
class World:
    """The processes of a run, as seen by one of them."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    tensor_parallel: int = 1
    """Processes of a replica of the model."""
    mesh: "DeviceMesh | None" = None
    """The processes as (replicas, tensor_parallel), axes `data` and `tensor`; None without
    tensor parallelism."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and runs callbacks."""
        return self.rank == 0

    @property
    def replicas(self) -> int:
        """Number of replicas of the model, each of which reads other rows."""
        return self.size // self.tensor_parallel

    @property
    def replica(self) -> int:
        """Index of the replica that this process belongs to."""
        return self.rank // self.tensor_parallel

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        if self.size > 1:
            dist.barrier()

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def sum_over_replicas(self, values: Tensor) -> Tensor:
        """Sum a tensor that is equal in all processes of a replica over all replicas, in place."""
        if self.mesh is None:
            return self.all_reduce(values)
        if self.replicas > 1:
            dist.all_reduce(values, group=self.mesh.get_group("data"))
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

    def check_equal(self, values: dict[str, Any]) -> None:
        """Raise `UserError` in all processes if the values of one differ from those of the main.

        A host that runs another recipe or version would train another model, or wait forever.
        """
        if self.size == 1:
            return
        shared: list[Any] = [values]
        dist.broadcast_object_list(shared, 0, device=self.device)
        expected: dict[str, Any] = shared[0]
        names = [name for name in expected | values if values.get(name) != expected.get(name)]
        if self.any_process(bool(names)):
            if not names:
                raise UserError("another process has other settings; see its error message")
            name = names[0]
            raise UserError(
                f"{name}: expected {expected.get(name)!r}, as in process 0, got "
                f"{values.get(name)!r} in process {self.rank}; start the same command, with the "
                "same versions, on all hosts"
            )

    def check_visible(self, path: Path) -> None:
        """Raise `UserError` in all processes if one does not see a file of the main process."""
        limit = time.monotonic() + VISIBLE_SECONDS
        while not path.exists() and time.monotonic() < limit:
            time.sleep(0.1)
        is_missing = not path.exists()
        if self.any_process(is_missing):
            if not is_missing:
                raise UserError("another process does not see the run's folder; see its message")
            raise UserError(
                f"process {self.rank} does not see {path.parent}, which process 0 uses; choose an "
                "-o that all hosts share"
            )


@contextmanager
def init_distributed(device: str, tensor_parallel: int = 1) -> Iterator[World]:
    """Join the process group that `torchrun` describes, if any; leave it on exit.

    Args:
        device: name of a device, or `auto`
        tensor_parallel: processes of a replica of the model

    Raises:
        UserError: the environment describes no group, or one of the wrong size; or another process
            was lost
    """
    size, rank = _read_world_size()
    if size % tensor_parallel:
        raise UserError(
            f"tensor_parallel: expected a divisor of the number of processes, {size}, got "
            f"{tensor_parallel}; change it, or --nnodes and --nproc_per_node of torchrun"
        )
    torch_device = pick_device(device)
    if size == 1:
        yield World(device=torch_device)
        return
    if torch_device.type == "cuda":
        torch_device = torch.device("cuda", _local_rank(torch.cuda.device_count()))
        torch.cuda.set_device(torch_device)
    try:
        dist.init_process_group(BACKENDS.get(torch_device.type, "gloo"))
        PROCESS_GROUPS.append(dist.group.WORLD)
        mesh = None
        if tensor_parallel > 1:
            from torch.distributed.device_mesh import init_device_mesh

            shape = (size // tensor_parallel, tensor_parallel)
            mesh = init_device_mesh(torch_device.type, shape, mesh_dim_names=("data", "tensor"))
        yield World(rank, size, torch_device, tensor_parallel, mesh)
    except RuntimeError as problem:
        if not _is_lost_connection(problem):
            raise
        reason = str(problem).splitlines()[0].partition(". This is")[0]  # gloo's advice follows
        raise UserError(
            f"process {rank} of {size} lost the connection to another one ({reason}); rerun the "
            "same command to resume, or let torchrun do it with --max-restarts"
        ) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def exit_if_distributed(code: int) -> None:
    """End the process at once, if it was one of several.

    Threads of a process group outlive `destroy_process_group`. If one of them asks for the GIL
    while the interpreter shuts down, Python ends the thread and C++ aborts the process. torchrun
    would then call a finished process failed and stop the others.

    Args:
        code: exit code of the process
    """
    if PROCESS_GROUPS:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _read_world_size() -> tuple[int, int]:
    """Return the number of processes and the rank of this one, from the environment."""
    values = []
    for name, default in (("WORLD_SIZE", "1"), ("RANK", "0")):
        text = os.environ.get(name, default)
        if not text.isdecimal():
            raise UserError(f"{name}: expected a whole number, got {text!r}; {START_HINT}")
        values.append(int(text))
    size, rank = values
    if not rank < max(size, 1):
        raise UserError(f"RANK: expected less than WORLD_SIZE={size}, got {rank}; {START_HINT}")
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if size > 1 and missing:
        raise UserError(f"WORLD_SIZE={size}, but {missing[0]} is not set; {START_HINT}")
    return max(size, 1), rank


def _local_rank(num_devices: int) -> int:
    """Return the device index of this process on its host."""
    index = int(os.environ.get("LOCAL_RANK", "0"))
    if index >= num_devices:
        raise UserError(
            f"--nproc_per_node: expected at most {num_devices}, the number of GPUs of this host, "
            f"got at least {index + 1}; start fewer processes, or pass device=cpu"
        )
    return index


def _is_lost_connection(problem: RuntimeError) -> bool:
    """Return whether a collective failed because a process or its host is gone."""
    return isinstance(problem, dist.DistError) or "gloo" in str(problem).lower()


def wrap_ddp(objective: nn.Module, world: World) -> nn.Module:
    """Return a module that averages the gradients over all processes in each backward pass."""
    device_ids = [world.device] if world.device.type == "cuda" else None
    return DistributedDataParallel(objective, device_ids=device_ids)


def full_tensor(value: Tensor) -> Tensor:
    """Return a detached copy on the CPU; shards are gathered, so all processes must call this."""
    return gather_shards(value.detach()).cpu()


def gather_shards(value: Tensor) -> Tensor:
    """Return the whole tensor on its device; all processes must call this."""
    sharded: Any = value  # a DTensor, if it is sharded
    whole: Tensor = sharded.full_tensor() if is_sharded(value) else value
    return whole


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
