"""Arguments of one function call, as the recorder sees it.

torch calls `__torch_function__` with the function and its arguments. `Call` adds what the recorder
needs to know about them: the canonical name of the operation, the tensors among the arguments, and
whether the call writes to one of them. The version counters of tensors show a write that the name
of the function does not:

    >>> x = torch.ones(2)
    >>> call = Call("add", "add", (x, 1), {"out": x}, [x])
    >>> before = call.tensor_versions()
    >>> call.is_in_place(torch.add(x, 1, out=x), before)
    True

A model that only runs in train mode is recorded with dropout disabled, by changing the arguments:

    >>> disable_dropout("dropout", (x, 0.1, True), {})[1]
    {'p': 0.1, 'training': False}
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from addnorm.doctor.graph.ops import DROPOUT

INPLACE_METHODS = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")
MAX_MEAN_ELEMENTS = 1 << 16
"""Maximum size of a weight or constant whose mean is computed."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a PyTorch function."""

    function_name: str
    """Name of the function, such as `__iadd__`."""
    op: str
    """Canonical name of the operation, such as `add`."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[Tensor]
    """All tensors among the arguments."""

    def tensor_versions(self) -> list[int] | None:
        """Return the version counter of each tensor; None for a property access."""
        if self.function_name == "__get__":
            return None  # reading a counter is a property access itself
        return [t._version for t in self.tensors if not t.is_inference()]

    def is_in_place(self, out: Any, versions_before: list[int] | None) -> bool:
        """Return whether the call wrote to one of its tensors, by its name or by the versions."""
        if self.function_name in INPLACE_METHODS or (
            self.function_name.endswith("_") and not self.function_name.endswith("__")
        ):
            return True
        if versions_before is None or not isinstance(out, Tensor):
            return False
        return self.tensor_versions() != versions_before and any(out is t for t in self.tensors)


def iter_plain_arguments(args: Any, kwargs: Any) -> Iterator[Any]:
    """Yield the tensors and numbers among the arguments, in order."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor | int | float) and not isinstance(value, bool):
            yield value
        elif isinstance(value, list | tuple):
            yield from iter_plain_arguments(value, {})


def disable_dropout(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with dropout disabled."""
    if op in DROPOUT:
        names = ("input", "p", "training", "inplace")
        arguments = dict(zip(names, args, strict=False)) | kwargs
        return (arguments["input"],), {"p": arguments.get("p", 0.5), "training": False}
    position = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 9}.get(op)
    if position is None:
        return args, kwargs
    if "dropout_p" in kwargs:
        kwargs = {**kwargs, "dropout_p": 0.0}
    elif len(args) > position:
        args = (*args[:position], 0.0, *args[position + 1 :])
    return args, kwargs


def has_memory(tensor: Tensor) -> bool:
    """Return whether a tensor has values; FSDP frees the memory of weights that it gathers later.

    >>> x = torch.ones(2)
    >>> has_memory(x), x.untyped_storage().resize_(0).nbytes(), has_memory(x)
    (True, 0, False)
    """
    try:
        return not tensor.numel() or tensor.untyped_storage().nbytes() > 0
    except (RuntimeError, NotImplementedError):  # sparse, or a wrapper without storage
        return True


def small_tensor_mean(tensor: Tensor) -> float | None:
    """Return the mean of a small floating-point tensor; None for other tensors."""
    if (
        tensor.numel() > MAX_MEAN_ELEMENTS
        or tensor.device.type == "meta"
        or not tensor.is_floating_point()
    ):
        return None
    with torch._C.DisableTorchFunction(), torch.no_grad():
        try:
            return float(tensor.detach().float().mean()) if tensor.numel() else None
        except RuntimeError:  # inside vmap a tensor has no values
            return None
