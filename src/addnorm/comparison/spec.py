"""The spec of a comparison: frozen, typed, saved and hashed; equal specs give equal rows."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from addnorm.comparison.grid import Arm, Cell, Grid
from addnorm.core.calls import Call
from addnorm.core.errors import UserError, closest_names, unknown_name_message
from addnorm.core.key_values import load_yaml
from addnorm.models.config import format_validation_error as told_mistake
from addnorm.train.schedules.base import registry as schedules
from addnorm.train.schedules.base import resolve_steps

if TYPE_CHECKING:
    from addnorm.comparison.job import CellRecipe
    from addnorm.comparison.tasks import Task

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]

DEMO = "demo"
"""In place of a folder: a corpus out of what is installed."""
TABLE_PREFIX = "table:"
"""Before the file of a table, in place of a task."""
AXES = tuple(Grid.model_fields)
MAX_CELLS = 5000


class Comparison(BaseModel):
    """Arms by depth by warm-up by learning rate by seed, on one task and one budget.

    >>> spec = Comparison.of({"task": "lm", "wiring": ["rezero", "pre_ln"], "lr": 1e-3, "seeds": 1})
    >>> [cell.name for cell in spec.cells()]
    ['rezero-d6-w0-lr0.001-s0', 'pre_ln-d6-w0-lr0.001-s0']
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: str = "translate"
    """Name of the task: a text task (`addnorm list tasks`), or table."""
    data: str = DEMO
    """Folder of the corpus, made by `addnorm data`; `demo` for one out of what is installed. The
    file of a table."""
    grids: tuple[Grid, ...] = (Grid(),)
    """What is varied."""
    seeds: PositiveInt = 2
    """Every setting is trained with so many seeds, one after the other, the same for all arms."""
    first_seed: NonNegativeInt = 0
    """The first of them; another one to see whether an answer holds with seeds nobody has seen."""
    steps: PositiveInt = 200
    """Updates of a cell, with the same batches in the same order for all arms."""
    schedule: str = "constant"
    """The schedule that all arms share, as a call string; its warm-up is an axis."""
    score: NonNegativeInt = 100
    """Held-out records that each cell answers at its end, for the task's score; 0 for none."""
    mode: Literal["fair", "halving"] = "fair"
    """fair trains every cell to its end; halving stops the worse half of an arm's settings at a
    quarter of the steps, and again at a half."""
    keys: dict[str, Any] = Field(default_factory=dict)
    """All other keys of a recipe, the same for every cell: dim, batch_tokens, optimizer, ..."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Comparison":
        """A spec from flat keys: its own, axes of a single grid, and those of a recipe."""
        task = _find_task(values.get("task", cls.model_fields["task"].default))
        values = dict(task.defaults if task else {}) | dict(values)
        own = {name: value for name, value in values.items() if name in cls.model_fields}
        axes = {name: value for name, value in values.items() if name in AXES}
        keys = dict(own.pop("keys", None) or {})
        for name, value in values.items():
            if name not in own and name not in axes and name != "keys":
                keys[name] = value
        if task is not None:  # a task that is none is refused below
            _check_keys(keys, task)
        axes = _add_schedule_warmup(own, axes)
        if axes and own.get("grids"):
            raise UserError(
                f"got grids and {', '.join(axes)} beside them; wanted the axes inside the grids"
            )
        try:
            own["grids"] = _parse_grids(own["grids"]) if "grids" in own else (Grid(**axes),)
            return cls(**own, keys=keys)
        except ValidationError as problem:
            raise UserError(_format_error(problem)) from None

    @field_validator("task")
    @classmethod
    def _check_task(cls, value: str) -> str:
        if _find_task(value) is None:
            from addnorm.comparison.tasks import TASKS

            raise ValueError(unknown_name_message("task", value, TASKS))
        return value

    @field_validator("data")
    @classmethod
    def _make_data_absolute(cls, value: str) -> str:
        """A comparison may go on from another folder than it was begun in."""
        return value if value == DEMO else str(Path(value).absolute())

    @model_validator(mode="after")
    def _check_size(self) -> "Comparison":
        if not self.grids:
            raise ValueError("a comparison needs a grid; wanted at least one")
        count = sum(grid.size() for grid in self.grids) * self.seeds
        if count > MAX_CELLS:
            raise ValueError(
                f"this grid has {count:,} cells, wanted at most {MAX_CELLS:,}; compare less at once"
            )
        return self

    @property
    def seed_range(self) -> range:
        """The seeds of every setting."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def cells(self) -> list[Cell]:
        """Every cell once, in the order in which it is told."""
        found = (cell for grid in self.grids for cell in grid.cells(self.seed_range))
        return list(dict.fromkeys(found))

    def arms(self) -> list[Arm]:
        """Every arm, in the order in which it is told."""
        return list(dict.fromkeys(cell.arm for cell in self.cells()))

    def recipe(self, cell: Cell, *, data: Path | str, tokenizer: Path | str) -> "CellRecipe":
        """What a cell trains, on the common data with the common tokenizer."""
        return self._resolved_task.recipe(self, cell, data=data, tokenizer=tokenizer)

    def check(self) -> None:
        """Refuse what makes no sense before anything runs: each arm is built once at each depth."""
        self._resolved_task.check(self)

    @property
    def _resolved_task(self) -> "Task":
        task = _find_task(self.task)
        assert task is not None
        return task

    @property
    def digest(self) -> str:
        """What tells it from every other spec."""
        return hashlib.sha256(
            json.dumps(self.canonical_dict(), sort_keys=True).encode()
        ).hexdigest()[:16]

    def canonical_dict(self) -> dict[str, Any]:
        """Plain data that tells it from others; a key that came later counts where it is used, so
        that a spec of then is the same one today.
        """
        told = self.model_dump(mode="json")
        return told if self.first_seed else {k: v for k, v in told.items() if k != "first_seed"}

    def to_flat_dict(self) -> dict[str, Any]:
        """Plain data, as it is written: the axes beside the other keys where there is one grid."""
        plain = self.model_dump(mode="json")
        grids, keys = plain.pop("grids"), plain.pop("keys")
        return plain | (grids[0] if len(grids) == 1 else {"grids": grids}) | keys

    def to_yaml(self) -> str:
        """Every key with its value, as YAML; `-c` reads it."""
        return yaml.safe_dump(self.to_flat_dict(), sort_keys=False, allow_unicode=True)


def read_spec(file: Path) -> dict[str, Any]:
    """The flat keys of a study in YAML."""
    return load_yaml(file, "study")


def task_keys(task: str) -> dict[str, Any]:
    """The keys that `--task` stands for: a task on its demo corpus, a table, or a recipe on own
    data.

    A recipe's wiring, norm, depth and learning rate are axes of one value each, unless others are
    asked for.
    """
    if task.startswith(TABLE_PREFIX):
        return {"task": "table", "data": task.removeprefix(TABLE_PREFIX)}
    if not task.endswith((".yaml", ".yml")):
        return {"task": task}
    keys = load_yaml(Path(task), "recipe")
    if not keys.get("data"):
        raise UserError(f"{task} names no data; add `data: FOLDER`, made by `addnorm data`")
    if isinstance(keys.get("schedule"), str):
        keys["schedule"] = _add_default_warmup(keys["schedule"])
    return {name: value for name, value in keys.items() if name != "seed"}


def _add_default_warmup(schedule: str) -> str:
    """A schedule with its warm-up, also where that is the default one."""
    call = schedules.resolve(schedule)
    option = (schedules.card(call.name).options or {}).get("warmup")
    return str(
        call if option is None else Call(call.name, {"warmup": option.default} | call.options)
    )


def _parse_grids(values: Any) -> tuple[Grid, ...]:
    if not isinstance(values, list | tuple) or not all(
        isinstance(each, Mapping | Grid) for each in values
    ):
        raise UserError("grids cannot be read; wanted a list, each with wiring, depth, lr, ...")
    return tuple(each if isinstance(each, Grid) else Grid(**each) for each in values)


def _add_schedule_warmup(spec_values: dict[str, Any], axes: dict[str, Any]) -> dict[str, Any]:
    """The axes with the warm-up of the common schedule, where it has one and no other is given."""
    if not isinstance(spec_values.get("schedule"), str):
        return axes
    schedules.resolve(spec_values["schedule"])  # refuses what is none
    call = Call.parse(spec_values["schedule"])
    if "warmup" not in call.options:
        return axes
    if "grids" in spec_values:
        raise UserError(
            f"schedule {spec_values['schedule']} has a warm-up, and so have the grids; leave it out there, "
            "and write warmup into the grids"
        )
    warmup = call.options["warmup"]
    steps = spec_values.get("steps", Comparison.model_fields["steps"].default)
    if type(steps) is not int:
        return axes  # refused where it is checked
    rest = {name: value for name, value in call.options.items() if name != "warmup"}
    spec_values["schedule"] = str(Call(call.name, rest))
    return {"warmup": resolve_steps(warmup, steps)} | axes


def _find_task(name: Any) -> "Task | None":
    """A task by name; None if it is none."""
    from addnorm.comparison.tasks import TASKS  # tasks know specs

    return TASKS.get(name) if isinstance(name, str) else None


def _check_keys(keys: Mapping[str, Any], task: "Task") -> None:
    """Refuse what is no key of a recipe of the task, and what a comparison decides itself."""
    known = task.recipe_keys()
    if decided := [name for name in keys if name in (*Comparison.model_fields, *AXES)]:
        raise UserError(
            f"keys holds {', '.join(decided)}, which a comparison decides itself; write it beside "
            "keys, not inside"
        )
    task.validate_keys(keys)
    for name in keys:
        if name == "seed":
            raise UserError("a comparison has seeds, not one seed; try seeds=2")
        if name not in known:
            every = [*Comparison.model_fields, *AXES, *known]
            close = closest_names(str(name), every)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "leave it out"
            raise UserError(f"a comparison has no {name!r}; {hint}")


def _format_error(error: ValidationError) -> str:
    words = told_mistake(error, [*Comparison.model_fields, *AXES])
    return words.replace("a config ", "a comparison ")
