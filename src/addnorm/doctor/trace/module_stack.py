"""Paths of the modules that are running, kept by global forward hooks.

A pre-forward hook pushes a frame with the path of a module, a forward hook pops it. In between, the
recorder attributes each operation to the innermost frame. Global hooks leave the modules unchanged:

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    >>> finished = []
    >>> stack = ModuleStack(model, lambda module, args, kwargs, out, path: finished.append(path))
    >>> with stack.track():
    ...     _ = model(torch.ones(1, 2))
    >>> finished  # the model itself is the last, with an empty path
    ['0', '1.0', '1', '']
"""

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from addnorm.doctor.graph.nodes import CallKey

WRAPPER_NAMES = frozenset(
    {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_compiled_module"}
)
"""Attributes under which wrappers of torch keep the module that they wrap."""

ExitHook = Callable[[nn.Module, Any, Any, Any, str], None]
"""Called after a module ran: module, args, kwargs, output, path."""


def unwrapped_name(name: str) -> str:
    """Return the name of a module or weight without the wrappers of torch on its path.

    >>> unwrapped_name("_orig_mod.layers.0._checkpoint_wrapped_module.linear.weight")
    'layers.0.linear.weight'
    """
    return ".".join(part for part in name.split(".") if part not in WRAPPER_NAMES)


@dataclass(slots=True)
class Frame:
    """One running call of a module."""

    module: nn.Module | None
    path: str
    key_path: str
    """The path without wrappers of torch."""
    call: int
    """Which call of the module it is, from 1."""
    op_counts: Counter[str] = field(default_factory=Counter)
    """Number of calls of each function so far."""


class ModuleStack:
    """Frames of the running modules, the innermost last.

    A module that is not part of the model, for instance one created inside `forward`, counts as
    its caller.
    """

    def __init__(self, model: nn.Module, on_exit: ExitHook | None = None) -> None:
        self.call_counts: dict[str, int] = {}
        """Number of calls by path."""
        self._names = {id(module): name for name, module in model.named_modules()}
        self._frames = [Frame(None, "", "", 0)]
        self._on_exit = on_exit

    @property
    def path(self) -> str:
        """Path of the innermost running module; empty for the model itself."""
        return self._frames[-1].path

    def count_call(self, op: str) -> CallKey:
        """Count a call of a function in the innermost module and return its key."""
        frame = self._frames[-1]
        frame.op_counts[op] += 1
        return CallKey(frame.key_path, frame.call, op, frame.op_counts[op])

    def find_weight(self, weight: Tensor) -> str:
        """Return the name of a weight of a running module; empty if none of them has it.

        FSDP replaces the weights of a module while it runs, so that the model does not know them.
        """
        for frame in reversed(self._frames):
            for name, own in frame.module.named_parameters() if frame.module is not None else ():
                if own is weight:
                    return f"{frame.path}.{name}" if frame.path else name
        return ""

    @contextlib.contextmanager
    def track(self) -> Iterator[None]:
        """Keep the stack up to date inside the block."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, with_kwargs=True)
        try:
            with warnings.catch_warnings():  # torch warns about hooks on compiled modules
                warnings.filterwarnings("ignore", message="Using `torch.compile")
                yield
        finally:
            before.remove()
            after.remove()
            # torch 2.13 does not remove this entry, and warns when a module is compiled later.
            _global_forward_hooks_with_kwargs.pop(after.id, None)

    def _enter(self, module: nn.Module, args: Any) -> None:
        path = self._names.get(id(module))
        if path is None:
            self._frames.append(self._frames[-1])
            return
        self.call_counts[path] = self.call_counts.get(path, 0) + 1
        self._frames.append(Frame(module, path, unwrapped_name(path), self.call_counts[path]))

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        path = self._frames.pop().path if len(self._frames) > 1 else ""
        if self._on_exit is not None:
            self._on_exit(module, args, kwargs, output, path)
