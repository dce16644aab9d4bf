"""Batches that a caller passes: one tensor, tuple or dict, or an iterable of these."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.doctor.trace.tensors import iter_named_tensors, map_tensors

MAX_BATCHES = 8
"""Batches that are read from an iterable, which may be endless."""


@dataclass(frozen=True)
class Batch:
    """Arguments of one call of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    original: Any
    """The batch as the caller passed it, for a loss function of the caller."""

    def call(self, model: Any) -> Any:
        """Return the output of a model for this batch; the model gets copies of the tensors."""
        dtype, device = find_dtype(model)
        args, kwargs = self.prepare(dtype, device)
        return model(*args, **kwargs)

    def prepare(
        self, dtype: torch.dtype | None, device: torch.device | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return copies of the arguments, floating-point tensors in a dtype."""

        def copy(tensor: Tensor) -> Tensor:
            to = dtype if tensor.is_floating_point() else None
            return tensor.detach().clone().to(device=device, dtype=to)

        return map_tensors(self.args, copy), {k: map_tensors(v, copy) for k, v in self._items()}

    def _items(self) -> Iterator[tuple[str, Any]]:
        return iter(self.kwargs.items())

    def map(self, function: Any) -> "Batch":
        """Return the batch with a function applied to every tensor."""
        args, kwargs = map_tensors(self.args, function), map_tensors(self.kwargs, function)
        return Batch(args, kwargs, kwargs if kwargs else args)


def find_dtype(model: Any) -> tuple[torch.dtype | None, torch.device | None]:
    """Return dtype and device of the first floating-point parameter of a model."""
    for weight in model.parameters():
        if weight.is_floating_point():
            return weight.dtype, weight.device
    return None, None


def read_batches(name: str, data: Any) -> list[Batch]:
    """Return the batches of an argument.

    A tensor is one batch, a tuple holds positional inputs, a dict keyword inputs. Anything else
    that can be iterated holds batches, of which the first `MAX_BATCHES` are read.

    Args:
        name: name of the argument, for error messages
        data: its value

    Raises:
        UserError: there is no batch, or one has no values or NaN
    """
    batches = []
    if _is_batch(data):
        batches = [_read_batch(name, data)]
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        for item in data:
            batches.append(_read_batch(name, tuple(item) if isinstance(item, list) else item))
            if len(batches) == MAX_BATCHES:
                break
    else:
        raise _type_error(name, data)
    if not batches:
        raise UserError(f"{name}: expected at least one batch, got none; pass some data")
    return batches


def _is_batch(data: Any) -> bool:
    return isinstance(data, Tensor | tuple | Batch) or _is_mapping(data)


def _is_mapping(data: Any) -> bool:
    return isinstance(data, Mapping) or (hasattr(data, "keys") and hasattr(data, "__getitem__"))


def _type_error(name: str, data: Any) -> UserError:
    return UserError(
        f"{name}: expected a tensor, a tuple of inputs, a dict of inputs, or an iterable of these, "
        f"got {type(data).__name__}"
    )


def _read_batch(name: str, data: Any) -> Batch:
    if isinstance(data, Batch):
        batch = data
    elif isinstance(data, Tensor):
        batch = Batch((data,), {}, data)
    elif isinstance(data, tuple):
        batch = Batch(data, {}, data)
    elif _is_mapping(data):
        batch = Batch((), {str(key): data[key] for key in data.keys()}, data)  # noqa: SIM118
    else:
        raise _type_error(name, data)
    tensors = [*iter_named_tensors(batch.args), *iter_named_tensors(batch.kwargs)]
    if not tensors:
        raise UserError(f"{name}: expected tensors, got {type(data).__name__} without any")
    for path, tensor in tensors:
        label = f"{name}[{path}]" if len(tensors) > 1 or batch.kwargs else name
        if tensor.is_meta:
            raise UserError(f"{label}: expected values, got a tensor on the meta device")
        if not tensor.numel():
            raise UserError(f"{label}: expected at least one token, got shape {[*tensor.shape]}")
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            count = int(tensor.isnan().sum())
            raise UserError(
                f"{label}: expected numbers, got {count} NaN of {tensor.numel()} values; remove "
                "them from the batch"
            )
    return batch


def vary_batches(batches: list[Batch]) -> list[Batch]:
    """Return further inputs of other contents and shapes, made from given ones.

    The values of each integer tensor are permuted, so that they stay in its range; noise is added
    to floats. Then all tensors of a common length are cut, and one sequence is taken. A model may
    not accept each of them.
    """
    generator = torch.Generator().manual_seed(0)
    first = batches[0]

    def shuffle(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.bool or tensor.numel() < 2 or _is_mask(tensor):
            return tensor
        if tensor.is_floating_point():
            finite = tensor.nan_to_num(posinf=0.0, neginf=0.0)
            noise = torch.randn(tensor.shape, generator=generator).to(tensor)
            return tensor + 0.5 * noise * finite.float().std().to(tensor)
        order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
        return tensor.flatten()[order].view(tensor.shape)

    varied = [first.map(shuffle), first.map(shuffle).map(lambda x: x[:1] if x.ndim > 1 else x)]
    lengths = [t.shape[1] for _, t in iter_named_tensors((first.args, first.kwargs)) if t.ndim > 1]
    length = max(set(lengths), key=lengths.count, default=0)
    if length > 2:
        cut = (length + 1) // 2

        def crop(x: Tensor) -> Tensor:
            return x[:, :cut] if x.ndim > 1 and x.shape[1] == length else x

        def double(x: Tensor) -> Tensor:
            return torch.cat((x, x), 1) if x.ndim > 1 and x.shape[1] == length else x

        varied += [first.map(shuffle).map(crop), first.map(shuffle).map(double)]
    return varied


def _is_mask(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and bool(((tensor == 0) | (tensor == 1)).all())
