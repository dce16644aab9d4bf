"""Kernels that no function shows: known by what autograd says and by how they behave."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

FAR = 400
"""Autograd nodes looked at on the way back."""


def linked(out: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether autograd knows a short way from a module's result back to what it was given."""
    goals = {t.grad_fn for t in given if t.grad_fn is not None}
    leaves = {id(t) for t in given if t.grad_fn is None and t.requires_grad}
    seen: set[Any] = set()
    waiting = [out.grad_fn]
    while waiting and len(seen) < FAR:
        step = waiting.pop()
        if step in goals:
            return True
        if step is None or step in seen:
            continue
        if leaves and id(getattr(step, "variable", None)) in leaves:
            return True
        seen.add(step)
        waiting += [earlier for earlier, _ in step.next_functions]
    return False


def norm_kind(
    module: nn.Module, args: Any, kwargs: Any, out: Tensor
) -> Literal["layer", "rms"] | None:
    """What a hidden kernel normalizes, if it does: f(3 x) = f(x), and for a layer norm also
    f(x + c) = f(x)."""
    x = args[0] if args else None
    if not isinstance(x, Tensor) or x.shape != out.shape or len(args) > 1 or kwargs:
        return None
    if any(weight.dim() > 1 for weight in module.parameters()):
        return None
    try:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            limit = 1e-2 * float(out.abs().max())
            if float((module.forward(3 * x.detach()) - out).abs().max()) > limit:
                return None
            shifted = float((module.forward(x.detach() + 2) - out).abs().max()) < limit
    except Exception:  # a stranger's kernel may refuse anything
        return None
    return "layer" if shifted else "rms"
