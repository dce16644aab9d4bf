"""Squared norms of tensors that may be sharded over processes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed


def local_shard(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def sum_of_squares(tensor: Tensor) -> Tensor:
    """Return the sum of squares in float32."""
    return torch.linalg.vector_norm(tensor.detach(), dtype=torch.float32).square()


def squared_norms(tensors: Sequence[Tensor | None]) -> Tensor:
    """Return the sum of squares of each tensor over all its shards; 0 for None.

    Returns:
        (len(tensors)) sums in float32, equal on every process.
    """
    known = [tensor for tensor in tensors if tensor is not None]
    zero = torch.zeros((), device=known[0].device if known else None)
    sums = [zero if tensor is None else sum_of_squares(local_shard(tensor)) for tensor in tensors]
    return sum_over_shards(sums, tensors)


def sum_over_shards(local_values: Sequence[Tensor], tensors: Sequence[Tensor | None]) -> Tensor:
    """Sum values that each process computed from its shards.

    Tensors with the same sharding share one all-reduce.

    Args:
        local_values: one scalar per tensor, computed from the local shard
        tensors: the tensors, which determine the sharding
    """
    if not local_values:
        return torch.zeros(0)
    values = torch.stack([value.to(local_values[0].device) for value in local_values])
    shardings: dict[tuple[Any, tuple[int, ...]], list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor is not None and is_sharded(tensor):
            dtensor: Any = tensor
            axes = tuple(axis for axis, each in enumerate(dtensor.placements) if each.is_shard())
            shardings.setdefault((dtensor.device_mesh, axes), []).append(index)
    for (mesh, axes), members in shardings.items():
        total = values[members]
        for axis in axes:
            distributed.all_reduce(total, group=mesh.get_group(axis))
        values[members] = total
    return values


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is split over processes (`DTensor`)."""
    if type(tensor) in (Tensor, torch.nn.Parameter):  # the common case; importing DTensor is slow
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def find_mesh(tensor: Tensor) -> Any:
    """Return the processes over which a tensor is split (a `DeviceMesh`); None if it is not."""
    return tensor.device_mesh if is_sharded(tensor) else None  # type: ignore[attr-defined]
