"""What keeps a visit from leaving traces: everything of a model as it was, also after a failure."""

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.doctor.leaves import tensors


class Guard:
    """Copies of what a forward may write to.

    Buffers are copied at once; weights, which are large and hardly ever written, when an
    operation is about to write.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights = {w.data_ptr(): w for w in model.parameters() if w.device.type != "meta"}
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        for buffer in model.buffers():
            if buffer.device.type != "meta":
                self._keep(buffer)

    def _keep(self, tensor: Tensor) -> None:
        if id(tensor) not in self._kept:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._kept[id(tensor)] = (tensor, tensor.detach().clone())

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operation is about to run: if it may write to a weight, keep a copy."""
        writes = name.startswith("__i") or name in ("__setitem__", "__set__") or "out" in kwargs
        if not writes and not (name.endswith("_") and not name.endswith("__")):
            return
        for tensor in tensors((args[:1], kwargs.get("out"))):
            pointer = tensor.untyped_storage().data_ptr() if tensor.numel() else 0
            if pointer in self._weights:
                self._keep(self._weights[pointer])

    def restore(self) -> None:
        """Write back what was kept, where it differs."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for tensor, copy in self._kept.values():
                if tensor.shape != copy.shape:
                    tensor.data = copy
                elif not torch.equal(tensor, copy):
                    tensor.data.copy_(copy)


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[Guard]:
    """Weights, buffers, gradients, modes, what learns, hooks and generators as before."""
    guard = Guard(model)
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    weights = [(weight, weight.requires_grad, weight.grad) for weight in model.parameters()]
    state, numpy_state = random.getstate(), _numpy_state()
    fast = torch.backends.mha.get_fastpath_enabled()
    with torch.random.fork_rng(devices=_devices(model)), _uncompiled():
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            for weight, _, _ in weights:
                weight.grad = None
                if weight.is_floating_point():
                    weight.requires_grad_(True)
            yield guard
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            guard.restore()
            for module, mode in modes:
                module.training = mode
            for module, theirs in buffers:
                module._buffers.clear()
                module._buffers.update(theirs)
            for weight, learns, gradient in weights:
                weight.requires_grad_(learns)
                weight.grad = gradient
            random.setstate(state)
            if numpy_state is not None:
                _numpy().random.set_state(numpy_state)


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Compiled parts run as they were written; who never compiled need not wait for the import."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def _devices(model: nn.Module) -> list[int]:
    found = {w.device.index for w in model.parameters() if w.device.type == "cuda"}
    return sorted(index for index in found if index is not None)


def _numpy() -> Any:
    import numpy

    return numpy


def _numpy_state() -> Any:
    return _numpy().random.get_state()


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile, DataParallel and its kin."""
    compiled: tuple[type, ...] = ()
    if "torch._dynamo" in sys.modules:
        from torch._dynamo.eval_frame import OptimizedModule

        compiled = (OptimizedModule,)
    while True:
        if isinstance(model, compiled):
            model = model.get_submodule("_orig_mod")
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model
