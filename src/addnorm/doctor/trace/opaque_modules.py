"""Kernels that no function shows: known by what autograd says and by how they behave."""

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from addnorm.doctor.trace.state_guard import preserve_model_state

MAX_AUTOGRAD_NODES = 400
"""Autograd nodes looked at on the way back."""


def is_linked(out: Tensor, inputs: Sequence[Tensor]) -> bool:
    """Whether autograd knows a short way from a module's result back to what it was given."""
    goals = {t.grad_fn for t in inputs if t.grad_fn is not None}
    leaves = {id(t) for t in inputs if t.grad_fn is None and t.requires_grad}
    seen: set[Any] = set()
    waiting = [out.grad_fn]
    while waiting and len(seen) < MAX_AUTOGRAD_NODES:
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


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a module is a batch norm, written by anybody: it keeps statistics of its own, and
    normalizes by those of the batch in train mode."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return True
    if any(True for _ in module.children()) or isinstance(module, torch.jit.ScriptModule):
        return False
    kept = [b for b in module.buffers(recurse=False) if b.is_floating_point() and b.dim() == 1]
    return len(kept) >= 2 and behaves_as_norm(module, set())


def detect_norm_kind(
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


def behaves_as_norm(module: nn.Module, sizes: set[int]) -> bool:
    """Whether a module gives f(3 x) = f(x), or is squashed for large x, without being constant."""
    weights = list(module.parameters(recurse=False))
    if any(w.dim() > 1 or w.device.type == "meta" for w in weights):
        return False
    held = [*weights, *(b for b in module.buffers(recurse=False) if b.is_floating_point())]
    widths = {w.numel() for w in held if w.numel() > 1} or sizes
    with preserve_model_state(module) as guard, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of inputs that nobody but the doctor gave
        guard.save_weights()
        module.train(True)
        return any(_is_norm_at_width(module, width) for width in sorted(widths))


def _is_norm_at_width(module: nn.Module, width: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight = next(module.parameters(), None)
    kind = torch.float32 if weight is None else weight.dtype
    run = module.forward  # the owner's hooks are not for invented inputs
    for shape in ((4, 5, width), (4, width, 5), (4, width), (4, width, 5, 5)):
        x = torch.randn(shape, generator=generator).to(kind)
        if weight is not None:
            x = x.to(weight.device)
        try:
            with torch.no_grad():
                one, three, two = run(x), run(3 * x), run(-x)
                large, larger = run(1e4 * x), run(2e4 * x)
        except Exception:  # another shape, another try
            continue
        if not isinstance(one, Tensor) or one.shape != x.shape:
            continue
        moves = not torch.allclose(one, two, atol=1e-3)
        if moves and torch.allclose(one, three, atol=1e-2, rtol=1e-2):
            return True
        squashed = torch.allclose(large, larger, atol=1e-3) and not torch.allclose(one, three)
        if moves and squashed and weight is not None:
            return True
    return False
