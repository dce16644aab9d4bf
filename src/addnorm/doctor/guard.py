"""What keeps a visit from leaving traces: everything of a model as it was, also after a failure."""

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from addnorm.core.errors import UserError
from addnorm.doctor.leaves import tensors
from addnorm.doctor.ops import EMBEDDINGS


class Guard:
    """Copies of what a forward may write to.

    Buffers and inputs are copied at once; weights, which are large and hardly ever written, when
    an operation is about to write.
    """

    def __init__(self, model: nn.Module) -> None:
        _no_lazy(model)
        self._weights: dict[int, list[tuple[str, Tensor]]] = {}
        self._versions: list[tuple[str, Tensor, int]] = []
        for name, weight in model.named_parameters():
            if weight.device.type != "meta":
                self._weights.setdefault(_storage(weight), []).append((name, weight))
                self._versions.append((name, weight, weight._version))
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        for buffer in model.buffers():
            if buffer.device.type != "meta":
                self.keep(buffer)

    def keep(self, tensor: Tensor) -> None:
        """Copy a tensor, once, so that it can be restored."""
        if id(tensor) not in self._kept:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._kept[id(tensor)] = (tensor, tensor.detach().clone())

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operation is about to run: if it may write to a weight, keep a copy."""
        written: Any = ()
        if name in EMBEDDINGS:  # with max_norm they shorten the rows that they look up, in place
            if (args[3] if len(args) > 3 else kwargs.get("max_norm")) is not None:
                written = (args[1:2], kwargs.get("weight"))
        elif _writes(name, kwargs):
            written = (args[:1], kwargs.get("out"))
        for tensor in tensors(written):
            for _, weight in self._weights.get(_storage(tensor), ()):
                self.keep(weight)

    def restore(self) -> None:
        """Write back what was kept, where it differs."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for tensor, copy in self._kept.values():
                if tensor.shape != copy.shape:
                    tensor.data = copy
                elif not torch.equal(tensor, copy):
                    tensor.data.copy_(copy)

    def escaped(self) -> list[str]:
        """Weights that were written to where nothing saw it, as a kernel may do: no copy."""
        return [
            name
            for name, weight, version in self._versions
            if weight._version != version and id(weight) not in self._kept
        ]


def _writes(name: str, kwargs: dict[str, Any]) -> bool:
    if name.startswith("__i") or name in ("__setitem__", "__set__") or "out" in kwargs:
        return True
    return name.endswith("_") and not name.endswith("__")


def _storage(tensor: Tensor) -> int:
    """Where a tensor's numbers lie: the same for all views into one buffer."""
    try:
        return tensor.untyped_storage().data_ptr() if tensor.numel() else 0
    except (RuntimeError, NotImplementedError):  # sparse, or a wrapper without numbers
        return 0


def _no_lazy(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise UserError(
                f"{name} has no shape yet, as a lazy module leaves it; wanted a model whose "
                "weights exist; try one forward on the example inputs first"
            )


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[Guard]:
    """Weights, buffers, gradients, modes, what learns, hooks and generators as before."""
    guard = Guard(model)
    fast = torch.backends.mha.get_fastpath_enabled()
    with contextlib.ExitStack() as stack:  # each of them is done, whatever becomes of the others
        stack.enter_context(generators(model))
        stack.enter_context(_uncompiled())
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):  # they cannot rebind a buffer
                stack.callback(_rebind, module._buffers, dict(module._buffers))
            stack.callback(setattr, module, "training", module.training)
        stack.callback(guard.restore)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        for weight in model.parameters():
            stack.callback(_as_it_learned, weight, weight.requires_grad, gradient=weight.grad)
            weight.grad = None
            if weight.is_floating_point():
                weight.requires_grad_(True)
        yield guard


def _rebind(held: dict[str, Any], theirs: dict[str, Any]) -> None:
    held.clear()
    held.update(theirs)


def _as_it_learned(weight: Tensor, learns: bool, *, gradient: Tensor | None) -> None:
    weight.requires_grad_(learns)
    weight.grad = gradient


@contextlib.contextmanager
def generators(model: nn.Module) -> Iterator[None]:
    """The generators of torch, Python and numpy as before."""
    state, numpy_state = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=_devices(model)):
            yield
    finally:
        random.setstate(state)
        numpy.random.set_state(numpy_state)


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Compiled parts run as they were written; who never compiled need not wait for the import."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def _devices(model: nn.Module) -> list[int]:
    found = {w.device.index for w in model.parameters() if w.device.type == "cuda"}
    return sorted(index for index in found if index is not None)


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
