"""Operations that leave float64, which bound how exactly two computations can agree."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

LOWER_PRECISION = (torch.float32, torch.bfloat16, torch.float16)


class CastWatcher(TorchDispatchMode):
    """Notices operations that read float64 and return less, as `x.float()` inside a norm does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_casts = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.dtype in LOWER_PRECISION:
            reads = [each for each in args if isinstance(each, Tensor)]
            self.has_casts |= any(each.dtype == torch.float64 and each.ndim for each in reads)
        return out
