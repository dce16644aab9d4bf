"""Paths of the modules that are running, kept by global forward hooks.

A pre-forward hook pushes the path of a module, a forward hook pops it. In between, the recorder
attributes each operation to the innermost path. Global hooks leave the modules unchanged:

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
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

ExitHook = Callable[[nn.Module, Any, Any, Any, str], None]
"""Called after a module ran: module, args, kwargs, output, path."""


class ModuleStack:
    """Qualified names of the running modules, the innermost last.

    A module that is not part of the model, for instance one created inside `forward`, counts as
    its caller.
    """

    def __init__(self, model: nn.Module, on_exit: ExitHook) -> None:
        self.call_counts: dict[str, int] = {}
        """Number of calls by path."""
        self._names = {id(module): name for name, module in model.named_modules()}
        self._paths = [""]
        self._on_exit = on_exit

    @property
    def path(self) -> str:
        """Path of the innermost running module; empty for the model itself."""
        return self._paths[-1]

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
        path = self._names.get(id(module), self.path)
        self._paths.append(path)
        self.call_counts[path] = self.call_counts.get(path, 0) + 1

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        path = self._paths.pop() if len(self._paths) > 1 else ""
        self._on_exit(module, args, kwargs, output, path)
