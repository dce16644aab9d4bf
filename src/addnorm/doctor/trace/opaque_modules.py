"""Opaque modules: custom kernels whose operations a function mode does not see.

Autograd tells whether the output of a module depends on its input, and a few calls with changed
inputs tell whether it is a norm:

    f(3 x) = f(x) and f(x + c) = f(x)     layer norm
    f(3 x) = f(x) only                    RMS norm
"""

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from addnorm.doctor.trace.state_guard import preserve_model_state

MAX_AUTOGRAD_NODES = 400
"""Maximum number of autograd nodes of a search."""


def is_linked(out: Tensor, inputs: Sequence[Tensor]) -> bool:
    """Return whether autograd connects the output of a module to one of its inputs."""
    targets = {t.grad_fn for t in inputs if t.grad_fn is not None}
    leaves = {id(t) for t in inputs if t.grad_fn is None and t.requires_grad}
    visited: set[Any] = set()
    waiting = [out.grad_fn]
    while waiting and len(visited) < MAX_AUTOGRAD_NODES:
        function = waiting.pop()
        if function in targets:
            return True
        if function is None or function in visited:
            continue
        if leaves and id(getattr(function, "variable", None)) in leaves:
            return True
        visited.add(function)
        waiting += [earlier for earlier, _ in function.next_functions]
    return False


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module is a batch norm, of PyTorch or any other implementation.

    Other implementations are known by two floating-point buffers, the running statistics, and by
    their behavior in train mode.
    """
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return True
    if any(True for _ in module.children()) or isinstance(module, torch.jit.ScriptModule):
        return False
    statistics = [
        b for b in module.buffers(recurse=False) if b.is_floating_point() and b.dim() == 1
    ]
    return len(statistics) >= 2 and behaves_as_norm(module, set())


def detect_norm_kind(
    module: nn.Module, args: Any, kwargs: Any, out: Tensor
) -> Literal["layer", "rms"] | None:
    """Return the kind of norm that an opaque module computes; None if it is not a norm."""
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
    except Exception:  # a custom kernel may reject any input
        return None
    return "layer" if shifted else "rms"


def behaves_as_norm(module: nn.Module, sizes: set[int]) -> bool:
    """Return whether a module behaves as a norm on random inputs.

    It is scale-invariant, f(3 x) = f(x), or saturates for large x, and is not constant.

    Args:
        module: module to test; it is restored
        sizes: widths to try if its weights do not tell the width
    """
    weights = list(module.parameters(recurse=False))
    if any(w.dim() > 1 or w.device.type == "meta" for w in weights):
        return False
    tensors = [*weights, *(b for b in module.buffers(recurse=False) if b.is_floating_point())]
    widths = {w.numel() for w in tensors if w.numel() > 1} or sizes
    with preserve_model_state(module) as guard, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the unusual inputs
        guard.save_weights()
        module.train(True)
        return any(_is_norm_at_width(module, width) for width in sorted(widths))


def _is_norm_at_width(module: nn.Module, width: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight = next(module.parameters(), None)
    dtype = torch.float32 if weight is None else weight.dtype
    run = module.forward  # hooks of the user should not see these inputs
    for shape in ((4, 5, width), (4, width, 5), (4, width), (4, width, 5, 5)):
        x = torch.randn(shape, generator=generator).to(dtype)
        if weight is not None:
            x = x.to(weight.device)
        try:
            with torch.no_grad():
                once, tripled, negated = run(x), run(3 * x), run(-x)
                large, larger = run(1e4 * x), run(2e4 * x)
        except Exception:  # the module expects another shape
            continue
        if not isinstance(once, Tensor) or once.shape != x.shape:
            continue
        is_constant = torch.allclose(once, negated, atol=1e-3)
        if not is_constant and torch.allclose(once, tripled, atol=1e-2, rtol=1e-2):
            return True
        saturates = torch.allclose(large, larger, atol=1e-3) and not torch.allclose(once, tripled)
        if not is_constant and saturates and weight is not None:
            return True
    return False
