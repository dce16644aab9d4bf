"""What keeps a visit from leaving traces: everything of a model as it was, also after a failure.

Out of reach: weights that a kernel writes to by their address, and what lies outside of the model.
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
from addnorm.doctor.trace.tensors import iter_tensors
from addnorm.measure.isolation import compile_disabled, preserve_rng

MEMORY_SHARING_OPS = frozenset({"numpy", "__array__", "__dlpack__"})
"""Operations that lend a tensor's memory to others, who may write to it."""


class StateGuard:
    """Copies of what a forward may write to.

    Buffers and inputs are copied at once; weights, which are large and hardly ever written, when
    an operation is about to write.
    """

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
        """Whether a weight learned before the visit."""
        return name in self._trainable

    def save(self, tensor: Tensor) -> None:
        """Copy a tensor, once, so that it can be restored."""
        if id(tensor) not in self._copies:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._copies[id(tensor)] = (tensor, tensor.detach().clone())

    def before_operation(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operation is about to run: if it may write to a weight, keep a copy."""
        written: Any = ()
        if name in EMBEDDINGS:  # with max_norm they shorten the rows that they look up, in place
            if (args[3] if len(args) > 3 else kwargs.get("max_norm")) is not None:
                written = (args[1:2], kwargs.get("weight"))
        elif name in MEMORY_SHARING_OPS or _is_write(name, kwargs):
            written = (args[:1], kwargs.get("out"))
        for tensor in iter_tensors(written):
            for _, weight in self._weights.get(_storage_address(tensor), ()):
                self.save(weight)

    def save_weights(self) -> None:
        """Copy every weight: strangers are about to run where no operation is seen."""
        for same in self._weights.values():
            for _, weight in same:
                self.save(weight)

    def restore(self) -> None:
        """Write back what was kept, where it differs."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for tensor, copy in self._copies.values():
                if tensor.shape != copy.shape:
                    tensor.data = copy.clone()  # the copy itself may be wanted once more
                elif not torch.equal(tensor, copy):
                    tensor.data.copy_(copy)

    def unsaved_writes(self) -> list[str]:
        """Weights that were written to where nothing saw it, as a kernel may do: no copy."""
        return [
            name
            for name, weight, version in self._versions
            if weight._version != version and id(weight) not in self._copies
        ]


class WriteObserver(TorchFunctionMode):
    """Tells a guard of every operation, where nothing else records them."""

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
    """Where a tensor's numbers lie: the same for all views into one buffer."""
    try:
        return tensor.untyped_storage().data_ptr() if tensor.numel() else 0
    except (RuntimeError, NotImplementedError):  # sparse, or a wrapper without numbers
        return 0


def _check_not_lazy(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise UserError(
                f"{name} has no shape yet, as a lazy module leaves it; wanted a model whose "
                "weights exist; try one forward on the example inputs first"
            )


def _check_not_inference(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_inference():
            raise UserError(
                f"{name} was made under torch.inference_mode(), where nothing can be "
                "differentiated; wanted a model built outside of it"
            )


@contextlib.contextmanager
def preserve_model_state(model: nn.Module) -> Iterator[StateGuard]:
    """Weights, buffers, gradients, modes, what learns, hooks, attributes and generators as before.

    What a weight's owner does once its gradient is there, such as a step, is left undone.
    """
    guard = StateGuard(model)
    fast = torch.backends.mha.get_fastpath_enabled()
    with contextlib.ExitStack() as stack:  # each of them is done, whatever becomes of the others
        stack.enter_context(preserve_all_rng(model))
        stack.enter_context(compile_disabled())
        for module in model.modules():
            if isinstance(module, torch.jit.ScriptModule):  # they cannot rebind anything else
                stack.callback(setattr, module, "training", module.training)
            else:
                _save_attributes(stack, vars(module))
        stack.callback(guard.restore)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        for weight in model.parameters():
            stack.callback(_restore_gradient, weight, weight.requires_grad, gradient=weight.grad)
            weight.grad = None
            steps: Any = weight._post_accumulate_grad_hooks
            if steps:
                stack.callback(_restore_dict, steps, dict(steps))
                steps.clear()
            if weight.is_floating_point():
                weight.requires_grad_(True)
        yield guard


def _save_attributes(stack: contextlib.ExitStack, attributes: dict[str, Any]) -> None:
    """A module's attributes, and what its dicts hold: weights, buffers, parts, hooks, caches."""
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
