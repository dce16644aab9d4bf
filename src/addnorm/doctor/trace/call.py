"""What one call was given, apart from what it does."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from addnorm.doctor.graph.ops import DROPOUT

INPLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")
SMALL = 1 << 16
"""Weights and constants up to this size are looked at for their mean."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function of torch."""

    raw: str
    """The function's own name."""
    op: str
    """One name for all its spellings."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: list[Tensor]
    """Every tensor among the arguments."""

    def versions(self) -> list[int] | None:
        """How often each tensor was written to; None where asking would change what is asked."""
        if self.raw == "__get__":
            return None
        return [t._version for t in self.given if not t.is_inference()]

    def in_place(self, out: Any, before: list[int] | None) -> bool:
        """Whether it wrote to what it was given: by its name, or by the versions."""
        if self.raw in INPLACE or (self.raw.endswith("_") and not self.raw.endswith("__")):
            return True
        if before is None or not isinstance(out, Tensor):
            return False
        return self.versions() != before and any(out is t for t in self.given)


def plain_arguments(args: Any, kwargs: Any) -> Iterator[Any]:
    """Tensors and numbers among the arguments, in order."""
    waiting = [*args, *kwargs.values()]
    for value in waiting:
        if isinstance(value, Tensor | int | float) and not isinstance(value, bool):
            yield value
        elif isinstance(value, list | tuple):
            yield from plain_arguments(value, {})


def without_dropout(
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


def mean_of(tensor: Tensor) -> float | None:
    """The mean of a small tensor; None of a large one, or where there are no numbers."""
    if tensor.numel() > SMALL or tensor.device.type == "meta" or not tensor.is_floating_point():
        return None
    with torch._C.DisableTorchFunction(), torch.no_grad():
        try:
            return float(tensor.detach().float().mean()) if tensor.numel() else None
        except RuntimeError:  # inside vmap a tensor has no numbers to show
            return None
