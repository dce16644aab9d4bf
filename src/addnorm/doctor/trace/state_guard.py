"""State guard: restores a model after it was run, also if running it failed.

    with preserve_model_state(model) as guard:
        model(x)             # may update buffers, write to weights, register hooks
        guard.restore()      # weights and buffers as before, to run the model again

Buffers are copied at once. Weights are large and rarely written, so a weight is copied when an
operation is about to write to it; the recorder calls `StateGuard.before_operation` for each
operation.

Not covered: weights that a kernel writes to by their address, and state outside the model.
"""

import contextlib
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from addnorm.core.errors import UserError
from addnorm.doctor.graph.ops import EMBEDDINGS, op_name
from addnorm.doctor.trace.tensors import iter_tensors, to_plain
from addnorm.measure.evaluation_context import compile_disabled, preserve_rng

MEMORY_SHARING_OPS = frozenset({"numpy", "__array__", "__dlpack__"})
"""Operations that share the memory of a tensor with other code, which may write to it."""


class StateGuard:
    """Copies of the tensors that a forward pass may write to."""

    def __init__(self, model: nn.Module) -> None:
        _check_not_lazy(model)
        _check_not_inference(model)
        self._trainable = {name for name, w in model.named_parameters() if w.requires_grad}
        self._weights: dict[int, list[tuple[str, Tensor]]] = {}
        self._versions: list[tuple[str, Tensor, int]] = []
        for name, weight in model.named_parameters():
            if weight.device.type != "meta":
                self._weights.setdefault(_storage_address(weight), []).append((name, weight))
                self._versions.append((name, weight, weight._version))
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        for buffer in model.buffers():
            if buffer.device.type != "meta":
                self.save(buffer)

    def is_trainable(self, name: str) -> bool:
        """Return whether a weight required a gradient before the guard took over."""
        return name in self._trainable

    def save(self, tensor: Tensor) -> None:
        """Copy a tensor, unless there is a copy, so that it can be restored."""
        if id(tensor) not in self._copies:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._copies[id(tensor)] = (tensor, tensor.detach().clone())

    def before_operation(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Copy the weights that an operation may write to."""
        written: Any = ()
        if name in EMBEDDINGS:  # max_norm rescales rows of the weight in place
            if (args[3] if len(args) > 3 else kwargs.get("max_norm")) is not None:
                written = (args[1:2], kwargs.get("weight"))
        elif name in MEMORY_SHARING_OPS or _is_write(name, kwargs):
            written = (args[:1], kwargs.get("out"))
        for tensor in iter_tensors(written):
            for _, weight in self._weights.get(_storage_address(tensor), ()):
                self.save(weight)

    def save_weights(self) -> None:
        """Copy every weight, before code runs whose operations are not recorded."""
        for sharing in self._weights.values():
            for _, weight in sharing:
                self.save(weight)

    def restore(self) -> None:
        """Write the copies back to all tensors that changed."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for tensor, copy in self._copies.values():
                if tensor.shape != copy.shape:
                    tensor.data = copy.clone()  # restore may be called again
                elif not torch.equal(to_plain(tensor), to_plain(copy)):
                    tensor.data.copy_(copy)

    def unsaved_writes(self) -> list[str]:
        """Return the names of weights that changed without a copy, as a kernel may do."""
        return [
            name
            for name, weight, version in self._versions
            if weight._version != version and id(weight) not in self._copies
        ]


class WriteObserver(TorchFunctionMode):
    """Function mode that reports every operation to a guard, where no recorder runs."""

    def __init__(self, guard: StateGuard) -> None:
        super().__init__()
        self.guard = guard

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        self.guard.before_operation(op_name(func), args, kwargs)
        return func(*args, **kwargs)


def _is_write(name: str, kwargs: dict[str, Any]) -> bool:
    if name.startswith("__i") or name in ("__setitem__", "__set__") or "out" in kwargs:
        return True
    return name.endswith("_") and not name.endswith("__")


def _storage_address(tensor: Tensor) -> int:
    """Return the address of the storage, which is the same for all views of a tensor."""
    try:
        return tensor.untyped_storage().data_ptr() if tensor.numel() else 0
    except (RuntimeError, NotImplementedError):  # sparse, or a wrapper without storage
        return 0


def _check_not_lazy(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise UserError(
                f"model: expected initialized weights, got {name} of a lazy module; run one "
                "forward pass on the example inputs first"
            )


def _check_not_inference(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_inference():
            raise UserError(
                f"model: expected weights that can be differentiated, got {name}, created under "
                "torch.inference_mode(); build the model outside of it"
            )


@contextlib.contextmanager
def preserve_model_state(model: nn.Module) -> Iterator[StateGuard]:
    """Restore weights, buffers, gradients, modes, hooks, attributes and random generators on exit.

    Inside the block every floating-point weight requires a gradient, and hooks that run after a
    gradient is accumulated, such as an optimizer step, are disabled.
    """
    guard = StateGuard(model)
    fast = torch.backends.mha.get_fastpath_enabled()
    with contextlib.ExitStack() as stack:  # every callback runs, even if another one fails
        stack.enter_context(preserve_all_rng(model))
        stack.enter_context(compile_disabled())
        stack.enter_context(preserve_attributes(model))
        stack.callback(guard.restore)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        for weight in model.parameters():
            stack.callback(_restore_gradient, weight, weight.requires_grad, gradient=weight.grad)
            weight.grad = None
            hooks: Any = weight._post_accumulate_grad_hooks
            if hooks:
                stack.callback(_restore_dict, hooks, dict(hooks))
                hooks.clear()
            if weight.is_floating_point():
                weight.requires_grad_(True)
        yield guard


@contextlib.contextmanager
def preserve_attributes(model: nn.Module) -> Iterator[None]:
    """Restore the attributes, modes, hooks and own generators of all modules on exit."""
    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, torch.jit.ScriptModule):  # other attributes cannot be rebound
                stack.callback(setattr, module, "training", module.training)
            else:
                _save_attributes(stack, vars(module))
        yield


def _save_attributes(stack: contextlib.ExitStack, attributes: dict[str, Any]) -> None:
    """Restore the attributes of a module and its dicts: weights, buffers, children, hooks."""
    for value in attributes.values():
        if type(value) in (dict, OrderedDict):
            stack.callback(_restore_dict, value, dict(value))
        elif isinstance(value, torch.Generator):
            stack.callback(value.set_state, value.get_state())
    stack.callback(_restore_dict, attributes, dict(attributes))


def _restore_dict(target: dict[str, Any], saved: dict[str, Any]) -> None:
    target.clear()
    target.update(saved)


def _restore_gradient(weight: Tensor, requires_grad: bool, *, gradient: Tensor | None) -> None:
    weight.requires_grad_(requires_grad)
    weight.grad = gradient


@contextlib.contextmanager
def preserve_all_rng(model: nn.Module) -> Iterator[None]:
    """Restore the random generators of torch, Python and numpy on exit."""
    state, numpy_state = random.getstate(), numpy.random.get_state()
    try:
        with preserve_rng(model):
            yield
    finally:
        random.setstate(state)
        numpy.random.set_state(numpy_state)
