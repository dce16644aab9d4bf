"""What one call was given, apart from what it does."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from addnorm.doctor.graph.ops import DROPOUT

INPLACE_METHODS = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")
MAX_MEAN_ELEMENTS = 1 << 16
"""Weights and constants up to this size are looked at for their mean."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function of torch."""

    function_name: str
    """The function's own name."""
    op: str
    """One name for all its spellings."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[Tensor]
    """Every tensor among the arguments."""

    def tensor_versions(self) -> list[int] | None:
        """How often each tensor was written to; None where asking would change what is asked."""
        if self.function_name == "__get__":
            return None
        return [t._version for t in self.tensors if not t.is_inference()]

    def is_in_place(self, out: Any, versions_before: list[int] | None) -> bool:
        """Whether it wrote to what it was given: by its name, or by the versions."""
        if self.function_name in INPLACE_METHODS or (
            self.function_name.endswith("_") and not self.function_name.endswith("__")
        ):
            return True
        if versions_before is None or not isinstance(out, Tensor):
            return False
        return self.tensor_versions() != versions_before and any(out is t for t in self.tensors)


def iter_plain_arguments(args: Any, kwargs: Any) -> Iterator[Any]:
    """Tensors and numbers among the arguments, in order."""
    waiting = [*args, *kwargs.values()]
    for value in waiting:
        if isinstance(value, Tensor | int | float) and not isinstance(value, bool):
            yield value
        elif isinstance(value, list | tuple):
            yield from iter_plain_arguments(value, {})


def disable_dropout(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with nothing dropped."""
    if op in DROPOUT:
        names = ("input", "p", "training", "inplace")
        said = dict(zip(names, args, strict=False)) | kwargs
        return (said["input"],), {"p": said.get("p", 0.5), "training": False}
    place = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 9}.get(op)
    if place is None:
        return args, kwargs
    if "dropout_p" in kwargs:
        kwargs = {**kwargs, "dropout_p": 0.0}
    elif len(args) > place:
        args = (*args[:place], 0.0, *args[place + 1 :])
    return args, kwargs


def small_tensor_mean(tensor: Tensor) -> float | None:
    """The mean of a small tensor; None of a large one, or where there are no numbers."""
    if (
        tensor.numel() > MAX_MEAN_ELEMENTS
        or tensor.device.type == "meta"
        or not tensor.is_floating_point()
    ):
        return None
    with torch._C.DisableTorchFunction(), torch.no_grad():
        try:
            return float(tensor.detach().float().mean()) if tensor.numel() else None
        except RuntimeError:  # inside vmap a tensor has no numbers to show
            return None
