"""What to visit: a callable of a module, a Hugging Face family or config, a run folder of ours."""

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml
from torch import nn

from addnorm.core.errors import UserError, closest_names, unknown_name_message
from addnorm.doctor.stress_test import LOSSES
from addnorm.doctor.trace.errors import USER_CODE_ERRORS, describe_exception

MAX_DEFAULT_WEIGHTS = 500_000_000
"""Weights of a family's default config from which on it is built with fewer layers."""
LAYER_COUNT_FIELDS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
TARGET_HELP = (
    "wanted package.module:callable, file.py:callable, hf:FAMILY, hf:./config.json or a run folder"
)


def build_target(
    target: str, *, layers: int | None = None, options: Mapping[str, Any] | None = None
) -> tuple[nn.Module, list[str]]:
    """The model, and what has to be said about how it was built. options: what a callable is
    called with."""
    if target.startswith("hf:"):
        if options is not None:
            raise UserError(f"--config is for package.module:callable targets, got {target!r}")
        return _build_hf_family(target[3:], layers)
    if layers is not None:
        raise UserError(f"--layers is for hf: targets, got it with {target!r}; leave it out")
    found = import_target(target, TARGET_HELP)
    if isinstance(found, nn.Module) and options is None:
        return found, []
    made = call_target(target, found, options=dict(options or {}))
    if not isinstance(made, nn.Module):
        raise UserError(f"{target}() returned {type(made).__name__}; wanted a torch.nn.Module")
    return made, []


def import_target(target: str, expected: str) -> Any:
    """What package.module:name names. The module of the user is imported: their code runs."""
    name, _, attribute = target.rpartition(":")
    if not name or not attribute.replace(".", "").isidentifier():
        raise UserError(f"got {target!r}; {expected}")
    if name.endswith(".py") and not Path(name).is_file():
        raise UserError(f"there is no file {str(Path(name))!r}; wanted folder/file.py:callable")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = (
            _load_module(Path(name).resolve()) if name.endswith(".py") else import_module(name)
        )
    except USER_CODE_ERRORS as problem:
        if isinstance(problem, ModuleNotFoundError) and f"{name}.".startswith(f"{problem.name}."):
            raise UserError(
                f"cannot import {name!r}: {problem}; wanted a module on the path, try from the "
                "folder it lies in"
            ) from None
        raise UserError(f"importing {name!r} failed: {describe_exception(problem)}") from problem
    for part in attribute.split("."):
        if not hasattr(found, part):
            close = closest_names(part, [n for n in dir(found) if not n.startswith("_")])
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise UserError(f"{name!r} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def _load_module(path: Path) -> ModuleType:
    """The module of a file, in its package if it has one; never another one of the same name."""
    package = path.name == "__init__.py"
    stem, folder = (path.parent.name, path.parent.parent) if package else (path.stem, path.parent)
    around = folder / "__init__.py"
    parent = _load_module(around) if around.is_file() else None
    name = f"{parent.__name__}.{stem}" if parent else stem
    if _is_name_taken(name, path):
        name = f"{name}@{path.parent}".replace(".", "_")
    if name in sys.modules:
        return sys.modules[name]
    if parent is None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # for what lies beside it
    inside = [str(path.parent)] if package else None
    spec = spec_from_file_location(name, path, submodule_search_locations=inside)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
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
    """Whether a name is that of another module, loaded or not."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # loaded without a specification, as a script is
        return name in sys.modules
    return spec is not None and (spec.origin is None or Path(spec.origin).resolve() != path)


def _find_unknown_option(function: Any, options: Mapping[str, Any]) -> str:
    """What is to be said about an option that a callable does not take; nothing if it takes all."""
    try:
        taken = signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    if any(p.kind is p.VAR_KEYWORD for p in taken):
        return ""
    known = [p.name for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    strange = next((name for name in options if name not in known), None)
    return "" if strange is None else unknown_name_message("option", strange, known)


def call_target(target: str, function: Any, *, options: dict[str, Any]) -> Any:
    """What a callable of the user returns."""
    if isinstance(function, nn.Module):
        raise UserError(f"{target} is a module already; --config wants a callable that builds one")
    if not callable(function):
        raise UserError(f"{target} is {repr(function)[:100]}; wanted a module or what builds one")
    refused = _find_unknown_option(function, options)
    if refused:
        raise UserError(f"{target}(): {refused}")
    try:
        return function(**options)
    except USER_CODE_ERRORS as problem:
        raise UserError(
            f"{target}() failed: {describe_exception(problem)}{_failure_hint(function, options)}"
        ) from problem


def _failure_hint(function: Any, options: Mapping[str, Any]) -> str:
    """What is to be said about a callable that failed; nothing if arguments were not the matter."""
    if options:
        return f"; wanted a callable that works with {', '.join(options)}"
    try:
        signature(function).bind()
    except TypeError:
        return "; wanted a callable that needs no arguments, or its options by --config"
    except ValueError:  # it does not tell what it takes
        pass
    return ""


def build_optimizer(target: str, model: nn.Module) -> Any:
    """What package.module:callable makes of a model: something with groups of parameters."""
    found = import_target(target, "wanted package.module:callable that takes the model")
    if not callable(found):
        said = repr(found)[:100]
        raise UserError(f"{target} is {said}; wanted a callable that takes the model")
    try:
        made = found(model)
    except USER_CODE_ERRORS as problem:
        raise UserError(f"{target}(model) failed: {describe_exception(problem)}") from problem
    if not hasattr(made, "param_groups"):
        raise UserError(f"{target}(model) returned {type(made).__name__}; wanted an optimizer")
    return made


def load_loss(target: str, *, stress: bool) -> Any:
    """What package.module:callable is, or the word of a loss that a stress run knows."""
    if target in LOSSES:
        if not stress:
            raise UserError(f"--loss {target} is for --stress; add it, or give a callable")
        return target
    if ":" not in target:
        raise UserError(
            f"{unknown_name_message('loss', target, LOSSES)}; or package.module:callable"
        )
    found = import_target(target, "wanted package.module:callable of the model's output")
    if not callable(found):
        said = repr(found)[:100]
        raise UserError(f"{target} is {said}; wanted a callable of the model's output")
    return found


def read_options(path: Path) -> dict[str, Any]:
    """Options of a builder from a file of JSON or YAML."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as problem:
        raise UserError(f"cannot read {str(path)!r}: {describe_exception(problem)}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no options by name; wanted {{'depth': 6, 'pre_norm': true}}")
    return {str(name): value for name, value in found.items()}


# Hugging Face


def _build_hf_family(name: str, layers: int | None) -> tuple[nn.Module, list[str]]:
    try:
        import transformers
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError:
        raise UserError(
            "hf: targets need transformers, which is not installed; try pip install "
            "'addnorm[interop]'"
        ) from None
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    given: dict[str, Any] = {}
    kind = name
    if name.endswith(".json") or (name and Path(name).is_dir()):
        given = _read_hf_config(Path(name))
        kind = str(given.pop("model_type", ""))
        if not kind:
            raise UserError(f"{name} names no model_type; wanted a Hugging Face config.json")
    if kind not in CONFIG_MAPPING:
        close = closest_names(kind, CONFIG_MAPPING.keys())
        hint = f" did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise UserError(f"unknown Hugging Face family {kind!r};{hint} or give a config.json")
    try:
        config = CONFIG_MAPPING[kind](**given)
    except Exception as problem:
        raise UserError(
            f"the config of {kind!r} is refused: {describe_exception(problem)}"
        ) from problem
    notes = []
    if layers is not None:
        _set_depth(config, layers, kind=kind)
    elif not given:
        notes += _shrink_depth(config, kind)
    try:
        return _build_hf_model(config), notes
    except Exception as problem:
        raise UserError(f"building {kind!r} failed: {describe_exception(problem)}") from problem


def _read_hf_config(path: Path) -> dict[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise UserError(f"cannot read {str(path)!r}: {describe_exception(problem)}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no object; wanted a Hugging Face config.json")
    return found


def _build_hf_model(config: Any) -> nn.Module:
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and getattr(config, "is_decoder", True)
    whole = type(config) not in MODEL_MAPPING or (causal and not config.is_encoder_decoder)
    chosen: Any = AutoModelForCausalLM if whole else AutoModel
    return chosen.from_config(config)


def _set_depth(config: Any, layers: int, *, kind: str) -> None:
    """Set the number of layers; refused where that is not what makes the family deep."""
    before = _count_weights(config)
    if not _set_layers(config, layers):
        raise UserError(f"the config of {kind!r} has no number of layers; leave --layers out")
    if before is not None and _count_weights(config) == before and _set_layers(config, layers + 1):
        deeper = _count_weights(config)
        _set_layers(config, layers)
        if deeper == before:
            raise UserError(
                f"--layers {layers} changes nothing in {kind!r}, whose depth is told in another "
                "way; leave it out, or give hf:./config.json"
            )


def _set_layers(config: Any, layers: int) -> bool:
    """Also in the configs inside, such as those of a text and an image encoder; whether any had."""
    names = [n for n in LAYER_COUNT_FIELDS if isinstance(getattr(config, n, None), int)]
    for name in (*names[:1], "decoder_layers", "num_decoder_layers"):
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, layers)
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list):
        config.layer_types = (kinds * layers)[:layers]
    inner = [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return any([bool(names), *(_set_layers(c, layers) for c in inner if c is not None)])


def _count_weights(config: Any) -> int | None:
    """Weights of the model; None if they cannot be counted before it is built."""
    with torch.device("meta"):
        try:
            return sum(weight.numel() for weight in _build_hf_model(config).parameters())
        except Exception:
            return None


def _shrink_depth(config: Any, kind: str) -> list[str]:
    """Fewer layers, where the default config is too large to be built beside other work."""
    for layers in (None, 12, 4, 2):
        if layers is not None and not _set_layers(config, layers):
            return []  # it is tried as it is, as is what cannot be counted
        count = _count_weights(config)
        if count is None:
            return []
        if count <= MAX_DEFAULT_WEIGHTS:
            return [] if layers is None else [f"{kind} was built with {layers} layers only"]
    raise UserError(
        f"the default config of {kind!r} has {count:,} weights even with 2 layers; give a smaller "
        "one: hf:./config.json"
    )
