"""Squared lengths of tensors, of which each process may hold only a part."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed


def local_shard(tensor: Tensor) -> Tensor:
    """This process's part of a tensor."""
    return tensor.to_local() if _is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def sum_of_squares(tensor: Tensor) -> Tensor:
    """The sum of squares, in float32."""
    return torch.linalg.vector_norm(tensor.detach(), dtype=torch.float32).square()


def squared_norms(tensors: Sequence[Tensor | None]) -> Tensor:
    """The sum of squares of each tensor, all its parts together; 0 for None. (len(tensors))"""
    known = [tensor for tensor in tensors if tensor is not None]
    zero = torch.zeros((), device=known[0].device if known else None)
    parts = [zero if tensor is None else sum_of_squares(local_shard(tensor)) for tensor in tensors]
    return sum_over_shards(parts, tensors)


def sum_over_shards(local_values: Sequence[Tensor], tensors: Sequence[Tensor | None]) -> Tensor:
    """Numbers that each process computed from its parts of `tensors`, summed over the parts.

    One message for all tensors that are cut up in the same way.
    """
    if not local_values:
        return torch.zeros(0)
    values = torch.stack([part.to(local_values[0].device) for part in local_values])
    cuts: dict[tuple[Any, tuple[int, ...]], list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor is not None and _is_sharded(tensor):
            spread: Any = tensor
            axes = tuple(axis for axis, how in enumerate(spread.placements) if how.is_shard())
            cuts.setdefault((spread.device_mesh, axes), []).append(index)
    for (mesh, axes), members in cuts.items():
        total = values[members]
        for axis in axes:
            distributed.all_reduce(total, group=mesh.get_group(axis))
        values[members] = total
    return values


def _is_sharded(tensor: Tensor) -> bool:
    if type(tensor) in (Tensor, torch.nn.Parameter):  # nearly always; DTensor is slow to import
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)
