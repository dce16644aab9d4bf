"""Tasks of comparisons by name. A new task is a subclass of `Task` and an entry in `TASKS`."""

from addnorm.comparison.tasks.base import NUM_SAMPLES, DataSource, Example, Task
from addnorm.comparison.tasks.table import TableTask
from addnorm.comparison.tasks.text import Classify, Lm, Translate
from addnorm.core.errors import UnknownNameError, unknown_name_message

TASKS: dict[str, Task] = {task.name: task for task in (Translate(), Lm(), Classify(), TableTask())}


def get_task(name: str) -> Task:
    """Return the task with a name."""
    if name not in TASKS:
        raise UnknownNameError(unknown_name_message("task", name, TASKS))
    return TASKS[name]


__all__ = ["NUM_SAMPLES", "TASKS", "Example", "DataSource", "Task", "get_task"]
