"""Tasks of comparisons by name: the text tasks of `addnorm.tasks`, and tables."""

from addnorm.comparison.tasks.base import NUM_SAMPLES, DataSource, Task
from addnorm.comparison.tasks.table import TableTask
from addnorm.comparison.tasks.text import TextComparison
from addnorm.core.errors import UnknownNameError, unknown_name_message
from addnorm.tasks import Example
from addnorm.tasks import get_task as get_text_task
from addnorm.tasks import registry as text_tasks

TASKS: dict[str, Task] = {name: TextComparison(get_text_task(name)) for name in text_tasks}
TASKS |= {TableTask.name: TableTask()}


def get_task(name: str) -> Task:
    """Return the task with a name."""
    if not isinstance(name, str) or name not in TASKS:  # YAML may hold any value
        raise UnknownNameError(unknown_name_message("task", str(name), TASKS))
    return TASKS[name]


__all__ = ["NUM_SAMPLES", "TASKS", "Example", "DataSource", "Task", "get_task"]
