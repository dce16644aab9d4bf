"""Tasks of comparisons by name: the text tasks of `addnorm.tasks`, and tables."""

from functools import cache

from addnorm.comparison.tasks.base import NUM_SAMPLES, DataSource, Task
from addnorm.comparison.tasks.table import TableTask
from addnorm.comparison.tasks.text import TextComparison
from addnorm.core.errors import UnknownNameError, unknown_name_message
from addnorm.tasks import Example
from addnorm.tasks import get_task as get_text_task
from addnorm.tasks import registry as text_tasks

TABLE = TableTask()


def list_tasks() -> list[str]:
    """Return the names of all tasks, those of plugins included."""
    return [*text_tasks, TABLE.name]


def get_task(name: str) -> Task:
    """Return the task with a name."""
    if name == TABLE.name:
        return TABLE
    if not isinstance(name, str) or not text_tasks.can_resolve(name):  # YAML may hold any value
        raise UnknownNameError(unknown_name_message("task", str(name), list_tasks()))
    return _get_text_comparison(name)


@cache
def _get_text_comparison(name: str) -> Task:
    return TextComparison(get_text_task(name))


__all__ = ["NUM_SAMPLES", "list_tasks", "Example", "DataSource", "Task", "get_task"]
