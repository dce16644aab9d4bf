"""Tasks of comparisons by name; a new one is a class, and a line below."""

from addnorm.comparison.tasks.base import NUM_SAMPLES, DataSource, Example, Task
from addnorm.comparison.tasks.table import TableTask
from addnorm.comparison.tasks.text import Classify, Lm, Translate
from addnorm.core.errors import UnknownNameError, unknown_name_message

TASKS: dict[str, Task] = {task.name: task for task in (Translate(), Lm(), Classify(), TableTask())}


def get_task(name: str) -> Task:
    """A task by its name."""
    if name not in TASKS:
        raise UnknownNameError(unknown_name_message("task", name, TASKS))
    return TASKS[name]


__all__ = ["NUM_SAMPLES", "TASKS", "Example", "DataSource", "Task", "get_task"]
