"""Tasks of comparisons by name: the text tasks of `addnorm.tasks`, tables, and one's own."""

from functools import cache
from typing import Any

from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.tasks.base import NUM_SAMPLES, DataSource, Task
from addnorm.comparison.tasks.function import FunctionTask
from addnorm.comparison.tasks.function_registry import (
    FUNCTIONS,
    find_function,
    is_function_target,
)
from addnorm.comparison.tasks.table import TableTask
from addnorm.comparison.tasks.text import TextComparison
from addnorm.core.errors import UnknownNameError, unknown_name_message
from addnorm.tasks import Example
from addnorm.tasks import get_task as get_text_task
from addnorm.tasks import registry as text_tasks

TABLE = TableTask()


def list_tasks() -> list[str]:
    """Return the names of all tasks, those of plugins included."""
    return [*text_tasks, TABLE.name, *FUNCTIONS]


def get_task(name: Any) -> Task:
    """Return the task with a name; `FILE.py:FUNCTION` runs the file.

    Args:
        name: the name; YAML may hold any value
    """
    if isinstance(name, str):
        if (task := _find_builtin_task(name)) is not None:
            return task
        if name in FUNCTIONS or is_function_target(name):
            return FunctionTask(find_function(name))
    raise UnknownNameError(unknown_name_message("task", str(name), list_tasks()))


def get_stored_task(name: str, shared_data: SharedData | None = None) -> Task:
    """Return the task of a stored comparison, without running a file that its name refers to.

    A task that is not registered in this process counts as one of the user's own.
    """
    return _find_builtin_task(name) or FunctionTask.from_facts(name, shared_data)


def _find_builtin_task(name: str) -> Task | None:
    if name == TABLE.name:
        return TABLE
    if is_function_target(name) or not text_tasks.can_resolve(name):
        return None
    return _get_text_comparison(name)


@cache
def _get_text_comparison(name: str) -> Task:
    return TextComparison(get_text_task(name))


__all__ = [
    "NUM_SAMPLES",
    "DataSource",
    "Example",
    "Task",
    "get_stored_task",
    "get_task",
    "list_tasks",
]
