"""Comparisons from flat keys, as they come from YAML files, the command line or Python.

A mapping such as `{"task": "lm", "wiring": "pre_ln,b2t", "lr": 1e-3, "dim": 64}` mixes three kinds
of keys: fields of the spec (`task`), axes of its only grid (`wiring`, `lr`) and keys of the task's
recipe (`dim`). `parse_comparison` sorts them, adds the task's defaults and checks the rest.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from addnorm.comparison.grid import SWEEP, Grid, allow_unknown_names, parse_axis, to_plain
from addnorm.comparison.spec import GRID_KEYS, Comparison
from addnorm.comparison.tasks import Task, get_stored_task, get_task
from addnorm.comparison.tasks.function_registry import normalize_task_name
from addnorm.core.calls import Call
from addnorm.core.errors import UserError, closest_names
from addnorm.core.key_values import load_yaml
from addnorm.train.schedules.base import registry as schedules
from addnorm.train.schedules.base import resolve_steps

TABLE_PREFIX = "table:"
"""Prefix of `--task` that is followed by the file of a table."""


def parse_comparison(values: Mapping[str, Any], *, allow_unknown: bool = False) -> Comparison:
    """Build a spec from flat keys.

    Args:
        values: fields of the spec, axes of its only grid, and keys of the task's recipe
        allow_unknown: whether to accept a task, wirings and norms that are not registered in this
            process, to read the results of a comparison that used them

    >>> parse_comparison({"task": "lm", "wiring": "b2t", "dim": 64}).keys
    {'dim': 64}

    Raises:
        UserError: a key or a value is not valid
    """
    if not isinstance(values, Mapping):
        raise UserError(
            "spec: expected a Comparison or a mapping such as {'task': 'lm', 'wiring': 'b2t'}, got "
            f"{type(values).__name__}"
        )
    name = normalize_task_name(values.get("task", Comparison.model_fields["task"].default))
    task = get_stored_task(name) if allow_unknown and isinstance(name, str) else get_task(name)
    values = _add_defaults(dict(values) | {"task": name}, task)
    fields = {name: value for name, value in values.items() if name in Comparison.model_fields}
    axes = {name: value for name, value in values.items() if name in GRID_KEYS}
    keys = fields.pop("keys", None)
    keys = {} if keys is None else keys
    if not isinstance(keys, Mapping):
        raise UserError(f"keys: expected recipe keys with their values, got {keys!r}")
    keys = dict(keys)
    for name, value in values.items():
        if name not in fields and name not in axes and name != "keys":
            keys[name] = value
    _check_keys(keys, task)
    for each in fields["grids"] if _are_grids(fields.get("grids")) else [axes]:
        _check_axes(_get_further_axes(each), keys, task)
    fields.setdefault("extend_lr", _is_sweep(axes, fields.get("grids")))
    axes = _move_warmup_to_axes(fields, axes)
    if axes and fields.get("grids"):
        raise UserError(
            f"grids: expected the axes inside the grids, got {', '.join(axes)} beside them"
        )
    with allow_unknown_names(allow_unknown, free=task.has_free_names):
        fields["grids"] = _parse_grids(fields["grids"]) if "grids" in fields else (Grid(**axes),)
        return Comparison(**fields, keys=keys)


def read_spec(file: Path, *, verify: bool = False) -> dict[str, Any]:
    """Read the flat keys of a comparison from a YAML file.

    verify: whether the file is that of a comparison's folder, which must not have changed.
    """
    return load_yaml(file, "study", verify=verify)


def parse_task_option(task: str) -> dict[str, Any]:
    """Expand the value of `--task` into flat keys.

    Args:
        task: the name of a task, `table:FILE`, `FILE.py:FUNCTION`, or the path of a recipe in
            YAML. The wiring, norm, depth and learning rate of a recipe become axes with one value
            each.
    """
    if task.startswith(TABLE_PREFIX):
        return {"task": "table", "data": task.removeprefix(TABLE_PREFIX)}
    if not task.endswith((".yaml", ".yml")):
        return {"task": task}
    keys = load_yaml(Path(task), "recipe")
    if not keys.get("data"):
        raise UserError(
            f"data: expected a corpus folder in {task}, got none; add `data: FOLDER`, made by "
            "`addnorm data`"
        )
    if isinstance(keys.get("schedule"), str):
        keys["schedule"] = _add_default_warmup(keys["schedule"])
    return {name: value for name, value in keys.items() if name != "seed"}


def _add_default_warmup(schedule: str) -> str:
    """Return a schedule's call string with its warm-up spelled out, also if it is the default."""
    call = schedules.resolve(schedule)
    option = (schedules.card(call.name).options or {}).get("warmup")
    if option is None:
        return str(call)
    return str(Call(call.name, {"warmup": option.default} | call.options))


def _is_sweep(axes: Mapping[str, Any], grids: Any) -> bool:
    """Return whether the learning rates are those of `sweep`, which is also the default."""
    members = grids if isinstance(grids, list | tuple) else [axes]
    return any(isinstance(each, Mapping) and each.get("lr", SWEEP) == SWEEP for each in members)


def _add_defaults(values: dict[str, Any], task: Task) -> dict[str, Any]:
    """Add the defaults of the task; those of axes belong into the grids, if there are any."""
    fields = {name: each for name, each in task.defaults.items() if name not in GRID_KEYS}
    axes = {name: each for name, each in task.defaults.items() if name in GRID_KEYS}
    if not _are_grids(values.get("grids")):
        return fields | axes | values
    grids = [axes | each if isinstance(each, dict) else each for each in values["grids"]]
    return fields | values | {"grids": grids}


def _get_further_axes(grid: Any) -> Mapping[str, Any]:
    axes = grid.axes if isinstance(grid, Grid) else grid.get("axes", {})
    return axes if isinstance(axes, Mapping) else {}  # Grid rejects it


def _check_axes(axes: Mapping[str, Any], keys: Mapping[str, Any], task: Task) -> None:
    """Reject axes that are not recipe keys of the task, or whose values all cells must share."""
    for name, values in axes.items():
        if name in keys:
            raise UserError(f"{name}: expected an axis or a key, got both; leave one of them out")
        if name in task.shared_keys:
            raise UserError(
                f"{name}: expected one value, because all cells share it, got an axis; write "
                f"{name}=VALUE"
            )
        if name in (*Comparison.model_fields, *GRID_KEYS):
            raise UserError(f"axes: expected other names than {name}; write it beside axes")
        try:
            members = parse_axis(str(name), values)
        except ValueError as error:
            raise UserError(str(error)) from None
        for value in members:
            _check_keys(dict(keys) | {name: to_plain(value)}, task)


def _are_grids(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(
        isinstance(each, Mapping | Grid) for each in values
    )


def _parse_grids(values: Any) -> tuple[Grid, ...]:
    if not _are_grids(values):
        raise UserError("grids: expected a list of mappings with wiring, depth, lr, ...")
    return tuple(each if isinstance(each, Grid) else Grid(**each) for each in values)


def _move_warmup_to_axes(fields: dict[str, Any], axes: dict[str, Any]) -> dict[str, Any]:
    """Remove the warm-up from the common schedule and return the axes with it.

    A warm-up among the axes takes precedence.
    """
    if not isinstance(fields.get("schedule"), str):
        return axes
    schedules.resolve(fields["schedule"])  # rejects an unknown schedule
    call = Call.parse(fields["schedule"])
    if "warmup" not in call.options:
        return axes
    if "grids" in fields:
        raise UserError(
            f"schedule: expected no warm-up beside grids, got {fields['schedule']}; write warmup "
            "into the grids"
        )
    steps = fields.get("steps", Comparison.model_fields["steps"].default)
    if type(steps) is not int:
        return axes  # pydantic rejects it
    options = {name: value for name, value in call.options.items() if name != "warmup"}
    fields["schedule"] = str(Call(call.name, options))
    return {"warmup": resolve_steps(call.options["warmup"], steps)} | axes


def _check_keys(keys: Mapping[str, Any], task: Task) -> None:
    """Reject keys that the task's recipe does not have or that the comparison sets itself."""
    known = task.list_recipe_keys()
    if misplaced := [name for name in keys if name in (*Comparison.model_fields, *GRID_KEYS)]:
        raise UserError(
            f"keys: expected recipe keys only, got {', '.join(misplaced)}; write it beside keys"
        )
    task.validate_keys(keys)
    for name in keys:
        if name == "seed":
            raise UserError("seed: a comparison takes a number of seeds; use seeds=2")
        if name not in known and not task.has_free_names:
            close = closest_names(str(name), [*Comparison.model_fields, *GRID_KEYS, *known])
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "leave it out"
            raise UserError(f"a comparison has no {name!r}; {hint}")
