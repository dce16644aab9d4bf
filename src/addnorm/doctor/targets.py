"""What to visit: a callable of a module, a Hugging Face family or config, a run folder of ours."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from addnorm.core.errors import UserError, nearest

MOST = 500_000_000
"""Weights of a family's default config from which on it is built with fewer layers."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
WANTED = "wanted package.module:callable, hf:FAMILY, hf:./config.json or a run folder"


def build_target(target: str, *, layers: int | None = None) -> tuple[nn.Module, list[str]]:
    """The model, and what has to be said about how it was built."""
    if target.startswith("hf:"):
        return _family(target[3:], layers)
    if layers is not None:
        raise UserError(f"--layers is for hf: targets, got it with {target!r}; leave it out")
    name, colon, attribute = target.rpartition(":")
    if not colon or not attribute.replace(".", "").isidentifier():
        raise UserError(f"got {target!r}; {WANTED}")
    return _called(name, attribute), []


def _called(name: str, attribute: str) -> nn.Module:
    """The module of the user is imported: their code runs."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = import_module(name)
    except ModuleNotFoundError as problem:
        raise UserError(
            f"cannot import {name!r}: {problem}; wanted a module on the path, try from the folder "
            "it lies in"
        ) from None
    except Exception as problem:
        raise UserError(f"importing {name!r} failed: {_said(problem)}") from problem
    for part in attribute.split("."):
        if not hasattr(found, part):
            close = nearest(part, [n for n in dir(found) if not n.startswith("_")])
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise UserError(f"{name!r} has no {part!r}{hint}")
        found = getattr(found, part)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise UserError(f"{name}:{attribute} is {found!r}; wanted a module or what builds one")
        try:
            found = found()
        except Exception as problem:
            raise UserError(
                f"{name}:{attribute}() failed: {_said(problem)}; wanted a callable that needs no "
                "arguments"
            ) from problem
    if not isinstance(found, nn.Module):
        raise UserError(
            f"{name}:{attribute}() returned {type(found).__name__}; wanted a torch.nn.Module"
        )
    return found


def _said(problem: Exception) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"


# Hugging Face


def _family(name: str, layers: int | None) -> tuple[nn.Module, list[str]]:
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
    if name.endswith(".json") or Path(name).is_dir():
        given = _read(Path(name))
        kind = str(given.pop("model_type", ""))
        if not kind:
            raise UserError(f"{name} names no model_type; wanted a Hugging Face config.json")
    if kind not in CONFIG_MAPPING:
        close = nearest(kind, CONFIG_MAPPING.keys())
        hint = f" did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise UserError(f"unknown Hugging Face family {kind!r};{hint} or give a config.json")
    config = CONFIG_MAPPING[kind](**given)
    notes = []
    if layers is not None:
        notes += _set_layers(config, layers, kind)
    elif not given:
        notes += _shrunk(config, kind)
    try:
        return _made(config), notes
    except Exception as problem:
        raise UserError(f"building {kind!r} failed: {_said(problem)}") from problem


def _read(path: Path) -> dict[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise UserError(f"cannot read {str(path)!r}: {_said(problem)}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no object; wanted a Hugging Face config.json")
    return found


def _made(config: Any) -> nn.Module:
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and getattr(config, "is_decoder", True)
    whole = type(config) not in MODEL_MAPPING or (causal and not config.is_encoder_decoder)
    chosen: Any = AutoModelForCausalLM if whole else AutoModel
    return chosen.from_config(config)


def _set_layers(config: Any, layers: int, kind: str) -> list[str]:
    names = [n for n in LAYERS if isinstance(getattr(config, n, None), int)]
    if not names:
        raise UserError(f"the config of {kind!r} has no number of layers; leave --layers out")
    for name in (*names[:1], "decoder_layers", "num_decoder_layers"):
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, layers)
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list):
        config.layer_types = (kinds * layers)[:layers]
    return []


def _shrunk(config: Any, kind: str) -> list[str]:
    """Fewer layers, where the default config is too large to be built beside other work."""
    for layers in (None, 12, 4, 2):
        if layers is not None:
            _set_layers(config, layers, kind)
        with torch.device("meta"):
            try:
                count = sum(w.numel() for w in _made(config).parameters())
            except Exception:  # what cannot be counted is tried as it is
                return []
        if count <= MOST:
            return [] if layers is None else [f"{kind} was built with {layers} layers only"]
    raise UserError(
        f"the default config of {kind!r} has {count:,} weights even with 2 layers; give a smaller "
        "one: hf:./config.json"
    )
