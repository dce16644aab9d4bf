"""Tasks of one's own: functions that train one cell, by name or as `FILE.py:FUNCTION`."""

import hashlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from addnorm.comparison.tasks.function_cell import Cell, to_number
from addnorm.core.errors import UnknownNameError, UserError, unknown_name_message
from addnorm.plugins import load_plugin
from addnorm.plugins.loading import FILE_MODULE_PREFIX
from addnorm.tasks import registry as text_tasks

CellFunction = Callable[[Cell], Mapping[str, float] | None]
Function = TypeVar("Function", bound=Callable[..., Any])
VALID_LOSS = "valid_loss"
RESERVED_NAMES = ("table",)


@dataclass(frozen=True)
class TaskFunction:
    """A function that trains one cell, and how its result is judged."""

    name: str
    """Registered name, or `FILE.py:FUNCTION`."""
    function: CellFunction | None
    """None for a stored comparison, whose code is not run."""
    metric: str = VALID_LOSS
    maximize: bool = False
    baseline: float | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    """Name of the task on pages."""

    def register(self) -> None:
        """Make the task known by its name, unless another process has sent it here already."""
        FUNCTIONS.setdefault(self.name, self)


FUNCTIONS: dict[str, TaskFunction] = {}
"""Decorated functions by name."""


def task(
    name: str,
    *,
    baseline: float | None = None,
    metric: str = VALID_LOSS,
    maximize: bool = False,
    defaults: Mapping[str, Any] | None = None,
) -> Callable[[Function], Function]:
    """Return a decorator that registers a function as a task of comparisons.

    @addnorm.task("my_gpt", baseline=4.17)
    def train(cell: addnorm.Cell) -> dict[str, float] | None:
        ...

    Args:
        name: name of the task, for `--task`
        baseline: value of `metric` for a model that knows nothing; by default the median of the
            first values that the cells log
        metric: what arms are judged by: a name of `Cell.log` or of the returned mapping
        maximize: whether higher is better
        defaults: defaults of axes and fields of a comparison, such as `{"lr": 3e-4, "steps": 500}`
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise UserError(
            f"name of a task: expected letters, digits and underscores, such as my_gpt, got "
            f"{name!r}; write @addnorm.task('my_gpt')"
        )
    if name in RESERVED_NAMES or name in text_tasks:
        raise UserError(f"task {name!r} exists already; choose another name")
    if baseline is not None and not math.isfinite(to_number("baseline", baseline)):
        raise UserError(f"baseline: expected a finite number, got {baseline}")

    def add(function: Function) -> Function:
        known = FUNCTIONS[name].function if name in FUNCTIONS else None
        # The same function again is fine: a notebook cell may be run twice.
        if known is not None and _is_sibling(known, function):
            raise UserError(f"two functions are the task {name!r}; give one of them another name")
        FUNCTIONS[name] = TaskFunction(
            name, function, metric, maximize, baseline, dict(defaults or {}), name
        )
        return function

    return add


def is_function_target(name: str) -> bool:
    """Return whether a name of a task has the form `FILE.py:FUNCTION` or `MODULE:FUNCTION`."""
    module, colon, function = name.rpartition(":")
    return bool(colon) and bool(module) and function.isidentifier()


def normalize_task_name(value: Any) -> Any:
    """Return the name under which a spec stores a task.

    Args:
        value: a name, `FILE.py:FUNCTION`, whose path becomes absolute, or a function
    """
    if callable(value):
        return _name_function(value)
    if isinstance(value, str) and is_function_target(value):
        module, _, function = value.rpartition(":")
        if module.endswith(".py"):
            return f"{Path(module).resolve()}:{function}"
    return value


def find_function(name: str) -> TaskFunction:
    """Return a registered task, or the function that `FILE.py:FUNCTION` names.

    Raises:
        UserError: there is no such file or function
    """
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    target, _, attribute = name.rpartition(":")
    module = _find_loaded_file(target) or load_plugin(target)
    function = getattr(module, attribute, None)
    if not callable(function):
        found = [key for key, value in vars(module).items() if _is_defined_in(value, module)]
        raise UnknownNameError(unknown_name_message(f"function in {target}", attribute, found))
    for known in FUNCTIONS.values():
        if known.function is function:
            return TaskFunction(
                name, function, known.metric, known.maximize, known.baseline, known.defaults,
                known.title,
            )  # fmt: skip
    return TaskFunction(name, function, title=attribute)


def _find_loaded_file(target: str) -> ModuleType | None:
    """Return the module of a plugin file; on another machine, the file itself does not exist."""
    digest = hashlib.sha256(target.encode()).hexdigest()[:16]
    return sys.modules.get(FILE_MODULE_PREFIX + digest)


def _is_defined_in(value: Any, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _is_sibling(function: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Return whether two different functions are defined in one module."""
    is_same_module = function.__module__ == other.__module__
    return is_same_module and function.__qualname__ != other.__qualname__


def _name_function(function: Callable[..., Any]) -> str:
    for known in FUNCTIONS.values():
        if known.function is function:
            return known.name
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise UserError("task: expected a named function, got a lambda; define it with def")
    task(name)(function)
    return str(name)
