"""Tasks of comparisons by name; a new one is a class, and a line below."""

from addnorm.comparison.tasks.base import SAMPLES, Question, Source, Task
from addnorm.comparison.tasks.table import TableTask
from addnorm.comparison.tasks.text import Classify, Lm, Translate
from addnorm.core.errors import UnknownName, unknown

TASKS: dict[str, Task] = {task.name: task for task in (Translate(), Lm(), Classify(), TableTask())}


def task_of(name: str) -> Task:
    """A task by its name."""
    if name not in TASKS:
        raise UnknownName(unknown("task", name, TASKS))
    return TASKS[name]


__all__ = ["SAMPLES", "TASKS", "Question", "Source", "Task", "task_of"]
