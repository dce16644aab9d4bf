"""Tasks of comparisons by name; a new one is a class, and a line below."""

from addnorm.core.errors import UnknownName, unknown
from addnorm.lab.tasks.base import SAMPLES, Question, Source, Task
from addnorm.lab.tasks.table import TableTask
from addnorm.lab.tasks.text import Classify, Lm, Translate

TASKS: dict[str, Task] = {task.name: task for task in (Translate(), Lm(), Classify(), TableTask())}


def task_of(name: str) -> Task:
    """A task by its name."""
    if name not in TASKS:
        raise UnknownName(unknown("task", name, TASKS))
    return TASKS[name]


__all__ = ["SAMPLES", "TASKS", "Question", "Source", "Task", "task_of"]
