"""Targets of the command line: Python callables and Hugging Face families.

    package.module:callable   imported; the callable builds the model
    file.py:callable          the same, for a file that is not on the path
    hf:FAMILY, hf:PATH        a Hugging Face family or config, with random weights

Importing a target runs the user's code, which may raise anything, even SystemExit. Every failure
becomes a UserError of one line.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from addnorm.core.errors import UserError, closest_names, unknown_name_message
from addnorm.core.parsing import parse_json, parse_yaml
from addnorm.doctor.loading.hugging_face import build_hf_model
from addnorm.doctor.stress_test import LOSSES
from addnorm.doctor.trace.errors import USER_CODE_ERRORS, describe_exception

TARGET_HELP = (
    "package.module:callable, file.py:callable, hf:FAMILY, hf:./config.json or a run folder"
)


def build_target(
    target: str, *, depth: int | None = None, options: Mapping[str, Any] | None = None
) -> tuple[nn.Module, list[str]]:
    """Build the model that a target names.

    Args:
        target: see the module docstring
        depth: number of layers; Hugging Face targets only
        options: keyword arguments of the callable; not for Hugging Face targets

    Returns:
        The model, and messages about how it was built.
    """
    if target.startswith("hf:"):
        if options is not None:
            raise UserError(
                f"--config: expected a package.module:callable target, got {target!r}; omit it"
            )
        return build_hf_model(target[3:], depth)
    if depth is not None:
        raise UserError(f"--depth: expected an hf: target, got {target!r}; omit --depth")
    attribute = import_target(target, TARGET_HELP)
    if isinstance(attribute, nn.Module) and options is None:
        return attribute, []
    model = call_target(target, attribute, options=dict(options or {}))
    if not isinstance(model, nn.Module):
        raise UserError(
            f"{target}(): expected a torch.nn.Module, got an object of type {type(model).__name__}"
        )
    return model, []


def import_target(target: str, expected: str) -> Any:
    """Import the object that `package.module:name` or `file.py:name` refers to.

    Args:
        target: the reference
        expected: description of valid targets, for the error message
    """
    name, _, attribute = target.rpartition(":")
    if not name or not attribute.replace(".", "").isidentifier():
        raise UserError(f"expected {expected}, got {target!r}")
    if name.endswith(".py") and not Path(name).is_file():
        raise UserError(f"expected folder/file.py:callable, got no file {str(Path(name))!r}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        value: Any = (
            _load_module(Path(name).resolve()) if name.endswith(".py") else import_module(name)
        )
    except USER_CODE_ERRORS as problem:
        if isinstance(problem, ModuleNotFoundError) and f"{name}.".startswith(f"{problem.name}."):
            raise UserError(
                f"cannot import {name!r}: {problem}; run the command in the folder that contains "
                "it, or add that folder to PYTHONPATH"
            ) from None
        raise UserError(f"importing {name!r} failed: {describe_exception(problem)}") from problem
    for part in attribute.split("."):
        if not hasattr(value, part):
            close = closest_names(part, [n for n in dir(value) if not n.startswith("_")])
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise UserError(f"{name!r} has no {part!r}{hint}")
        value = getattr(value, part)
    return value


def _load_module(path: Path) -> ModuleType:
    """Load the module of a file, inside its package if it has one.

    The file is loaded under its own name if no other module has that name, and under a unique name
    otherwise. So a local `json.py` never replaces the standard library, and a file that other
    modules import is not loaded twice.
    """
    is_package = path.name == "__init__.py"
    stem, folder = (
        (path.parent.name, path.parent.parent) if is_package else (path.stem, path.parent)
    )
    parent_init = folder / "__init__.py"
    parent = _load_module(parent_init) if parent_init.is_file() else None
    name = f"{parent.__name__}.{stem}" if parent else stem
    if _is_name_taken(name, path):
        name = f"{name}@{path.parent}".replace(".", "_")
    if name in sys.modules:
        return sys.modules[name]
    if parent is None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # so that it can import its neighbors
    locations = [str(path.parent)] if is_package else None
    spec = spec_from_file_location(name, path, submodule_search_locations=locations)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    if parent is not None:
        setattr(parent, stem, module)
    return module


def _is_name_taken(name: str, path: Path) -> bool:
    """Return whether another module has a name, imported or not."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # imported without a spec, as __main__ is
        return name in sys.modules
    return spec is not None and (spec.origin is None or Path(spec.origin).resolve() != path)


def _find_unknown_option(function: Any, options: Mapping[str, Any]) -> str:
    """Return an error message about an option that a callable does not accept, else ''."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return ""
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = next((name for name in options if name not in known), None)
    return "" if unknown is None else unknown_name_message("option", unknown, known)


def call_target(target: str, function: Any, *, options: dict[str, Any]) -> Any:
    """Call the imported target with options and return the result."""
    if isinstance(function, nn.Module):
        raise UserError(
            f"--config: expected a callable that builds a model, got the model {target}"
        )
    if not callable(function):
        raise UserError(
            f"{target}: expected a model or a callable that builds one, got {repr(function)[:100]}"
        )
    message = _find_unknown_option(function, options)
    if message:
        raise UserError(f"{target}(): {message}")
    try:
        return function(**options)
    except USER_CODE_ERRORS as problem:
        raise UserError(
            f"{target}() failed: {describe_exception(problem)}{_failure_hint(function, options)}"
        ) from problem


def _failure_hint(function: Any, options: Mapping[str, Any]) -> str:
    """Return advice for a callable that failed, or an empty string if its arguments are not why."""
    if options:
        return f"; check the options {', '.join(options)}"
    try:
        signature(function).bind()
    except TypeError:
        return "; pass its arguments with --config, or use a callable without required arguments"
    except ValueError:  # a callable without a signature
        pass
    return ""


def build_optimizer(target: str, model: nn.Module) -> Any:
    """Call `package.module:callable` with the model and return the optimizer that it builds."""
    function = import_target(target, "package.module:callable that accepts the model")
    if not callable(function):
        raise UserError(
            f"--optimizer: expected a callable that accepts the model, got {repr(function)[:100]}"
        )
    try:
        optimizer = function(model)
    except USER_CODE_ERRORS as problem:
        raise UserError(f"{target}(model) failed: {describe_exception(problem)}") from problem
    if not hasattr(optimizer, "param_groups"):
        raise UserError(
            f"{target}(model): expected an optimizer, got an object of type "
            f"{type(optimizer).__name__}"
        )
    return optimizer


def load_loss(target: str, *, stress: bool) -> Any:
    """Return the loss that `--loss` names: an imported callable, or a key of LOSSES.

    Args:
        target: package.module:callable, or a key of LOSSES
        stress: whether a stress test runs; the keys of LOSSES require it
    """
    if target in LOSSES:
        if not stress:
            raise UserError(f"--loss {target} requires --stress; add --stress or pass a callable")
        return target
    if ":" not in target:
        raise UserError(
            f"{unknown_name_message('loss', target, LOSSES)}; or package.module:callable"
        )
    function = import_target(target, "package.module:callable that accepts the model's output")
    if not callable(function):
        raise UserError(
            f"--loss: expected a callable that accepts the model's output, got "
            f"{repr(function)[:100]}"
        )
    return function


def read_options(path: Path) -> dict[str, Any]:
    """Read the options of a builder from a JSON or YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
        is_json = path.suffix == ".json"
        options = parse_json(text, nonfinite=True) if is_json else parse_yaml(text)
    except (OSError, ValueError) as problem:
        raise UserError(f"cannot read {str(path)!r}: {describe_exception(problem)}") from None
    if not isinstance(options, dict):
        raise UserError(
            f"{path}: expected options by name such as {{depth: 6, pre_norm: true}}, got "
            f"{type(options).__name__}"
        )
    return {str(name): value for name, value in options.items()}
