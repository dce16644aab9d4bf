"""Calls of a model during training: an example for the probe, and the calls of the current step.

A hook on the model catches the arguments of its first call and removes itself. A second hook keeps
references to the calls since the last update, with the state of the random generators, so that a
step with a NaN can run again. Neither changes a call. The second hook is not used for compiled
models. A model that is compiled after its hooks were registered executes the first one as part of
the compiled code, where it stores the arguments and nothing else.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.doctor.trace.tensors import iter_tensors, map_tensors
from addnorm.measure.sites import unwrap_model

MAX_KEPT_CALLS = 8
"""Calls of one step that are kept; with more micro-batches the last ones."""


@dataclass(frozen=True, kw_only=True)
class ForwardCall:
    """Arguments of one call of a model, and the autocast that it ran under."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    """Device type and dtype of each autocast that was enabled."""
    rng_state: Tensor | None = None
    device_rng_state: Tensor | None = None
    """States of the generators of the CPU and of the model's accelerator before the call."""

    def copy_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return copies of the arguments, for a model that changes what it is given."""
        args, kwargs = cut_batch((self.args, self.kwargs), None)
        return args, kwargs

    @contextmanager
    def same_autocast(self) -> Iterator[None]:
        """Enable the autocasts of the call inside the block, and disable others.

        Casts are not cached: those of a pass without gradients would be used in training.
        """
        enabled = dict(self.autocast)
        with ExitStack() as stack:
            for device in {"cpu", *enabled, *(t.device.type for t in iter_tensors(self.args))}:
                if device in enabled or torch.is_autocast_enabled(device):
                    context = torch.autocast(
                        device,
                        dtype=enabled.get(device),
                        enabled=device in enabled,
                        cache_enabled=False,
                    )
                    stack.enter_context(context)
            yield

    def restore_rng(self) -> None:
        """Set the random generators to their state before the call."""
        if self.rng_state is not None:
            torch.set_rng_state(self.rng_state)
        if self.device_rng_state is not None:
            for tensor in iter_tensors((self.args, self.kwargs)):
                if tensor.device.type != "cpu":
                    module = getattr(torch, tensor.device.type)
                    module.set_rng_state(self.device_rng_state, tensor.device)
                    return


def cut_batch(value: Any, count: int | None) -> Any:
    """Return copies of tensors with the batch cut to its first `count` examples.

    The batch size is the length of the first tensor; tensors of another length are shared by all
    examples and stay whole.
    """
    size = next((len(t) for t in iter_tensors(value) if t.dim()), 0)

    def cut(tensor: Tensor) -> Tensor:
        is_batch = count is not None and tensor.dim() > 0 and len(tensor) == size
        return (tensor[:count] if is_batch else tensor).detach().clone()

    return map_tensors(value, cut)


def is_compiled(model: nn.Module) -> bool:
    """Return whether a model is compiled, as a whole or in parts."""
    return any(
        "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


class _CompiledCallHook:
    """Hook on a module that `module.compile()` compiled, outside of the compiled code.

    A forward pre-hook would be compiled too, and again without it once it is removed.
    """

    def __init__(self, module: nn.Module, hook: Callable[..., None]) -> None:
        self._module: Any = module
        compiled: Any = self._module._compiled_call_impl
        self._compiled = compiled

        def call(*args: Any, **kwargs: Any) -> Any:
            hook(module, args, kwargs)
            return compiled(*args, **kwargs)

        self._module._compiled_call_impl = call

    def remove(self) -> None:
        """Restore the compiled function."""
        self._module._compiled_call_impl = self._compiled


class _InertObserver:
    """What a copy of a monitored model has in place of its observer."""

    is_inert = True

    def _catch(self, *args: Any) -> None:
        pass

    _keep = _catch


class CallObserver:
    """Hooks that catch calls of a model.

    A model that is copied or saved while it is observed takes neither hooks nor inputs along.

    Args:
        model: the model as the training loop calls it
        examples: number of examples of the first call to copy
        keep_calls: whether to keep the calls of the current step
    """

    is_inert = False
    """Whether it belongs to a copy; `copy.deepcopy` keeps the functions of bound methods."""

    def __init__(self, model: nn.Module, *, examples: int, keep_calls: bool) -> None:
        self.example: ForwardCall | None = None
        self.step_calls: list[ForwardCall] = []
        """Calls since the last update, in training mode with gradients."""
        compiled = is_compiled(model)
        self.target = model if "_orig_mod" in model._modules else unwrap_model(model)
        self.keep_calls = keep_calls and not compiled
        self._examples: int | None = examples
        self._handles: list[Any] = []
        self._first: Any = None
        self._compiled_call: list[Any] = [None]
        self._accelerator = next(
            (p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")), None
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _InertObserver, ()

    @property
    def is_cut(self) -> bool:
        """Whether the example is a part of a batch."""
        return self._examples is not None

    def use(self, example: ForwardCall) -> None:
        """Use these arguments instead of those of a call."""
        self.example, self._examples = example, None
        self._stop_catching()

    def find_example(self) -> ForwardCall | None:
        """Return the arguments to measure; None if the model was not called in training yet."""
        if self.example is None and self._compiled_call[0] is not None:
            args, kwargs = self._compiled_call[0]
            self._compiled_call[0] = None
            self._set_example(args, kwargs)
        return self.example

    def retry(self, examples: int | None) -> None:
        """Catch the next call again, with this number of its examples; with all if None."""
        self.example, self._examples = None, examples
        self._catch_next()

    def use_whole_batch(self) -> None:
        """Use all examples of the current step's first call; of the next call if it is not kept."""
        self.retry(None)
        if self.step_calls:
            first = self.step_calls[0]
            args, kwargs = first.copy_arguments()
            self.use(replace(first, args=args, kwargs=kwargs))

    def attach(self) -> None:
        """Register the hooks."""
        if self.example is None:
            self._catch_next()
        if self.keep_calls:
            hook = self.target.register_forward_pre_hook(self._keep, with_kwargs=True)
            self._handles.append(hook)

    def _catch_next(self) -> None:
        if self._first is not None:
            return
        if getattr(self.target, "_compiled_call_impl", None) is not None:
            self._first = _CompiledCallHook(self.target, self._catch)
        else:
            self._first = self.target.register_forward_pre_hook(self._catch, with_kwargs=True)

    def detach(self) -> None:
        """Remove all hooks and release the kept calls."""
        self._stop_catching()
        for handle in self._handles:
            handle.remove()
        self._handles, self.step_calls = [], []

    def _stop_catching(self) -> None:
        if self._first is not None:
            self._first.remove()
            self._first = None

    def _catch(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if self.is_inert or not torch.is_grad_enabled():
            return  # a copy of the model, or a validation pass
        if torch.compiler.is_compiling():  # more than this would break the graph
            self._compiled_call[0] = (args, kwargs)
            return
        self._set_example(args, kwargs)

    def _set_example(self, args: Any, kwargs: dict[str, Any]) -> None:
        self._stop_catching()
        args, kwargs = cut_batch((args, kwargs), self._examples)
        self.example = ForwardCall(args=args, kwargs=kwargs, autocast=self._read_autocast())

    def _keep(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if self.is_inert or torch.compiler.is_compiling():
            return
        if not torch.is_grad_enabled() or not module.training:
            return
        accelerator = self._accelerator
        call = ForwardCall(
            args=map_tensors(args, _keep_tensor),  # new containers, as models may empty them
            kwargs=map_tensors(kwargs, _keep_tensor),
            autocast=self._read_autocast(),
            rng_state=torch.get_rng_state(),
            device_rng_state=(
                None
                if accelerator is None
                else getattr(torch, accelerator.type).get_rng_state(accelerator)
            ),
        )
        self.step_calls = [*self.step_calls[1 - MAX_KEPT_CALLS :], call]

    def _read_autocast(self) -> tuple[tuple[str, torch.dtype], ...]:
        devices = {"cpu", *([self._accelerator.type] if self._accelerator is not None else [])}
        return tuple(
            (device, torch.get_autocast_dtype(device))
            for device in sorted(devices)
            if torch.is_autocast_enabled(device)
        )


def _keep_tensor(tensor: Tensor) -> Tensor:
    return tensor
