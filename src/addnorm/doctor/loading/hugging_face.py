"""Hugging Face models built from a config with random weights; nothing is downloaded."""

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from addnorm.core.errors import UserError, closest_names
from addnorm.core.parsing import parse_json
from addnorm.core.validation import MAX_DEPTH, check_at_most, check_memory
from addnorm.doctor.trace.errors import describe_exception

MAX_DEFAULT_WEIGHTS = 500_000_000
"""A default config with more weights than this is built with fewer layers."""
REDUCED_DEPTHS = (12, 4, 2)
"""Depths to try for such a config, in this order."""
DEPTH_NAMES = re.compile(r".*(layers?|blocks?|depths?)")
"""Fields of a config with a number of layers; configs make lists of this length."""
MAX_COUNTED_DEPTH = 100
"""Deeper models are not built to count their weights."""
LAYER_COUNT_FIELDS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")


def build_hf_model(name: str, depth: int | None = None) -> tuple[nn.Module, list[str]]:
    """Build a model from a family name or a config file.

    Args:
        name: family such as `bert`, path of a config.json, or of a folder that holds one
        depth: number of layers; by default that of the config

    Returns:
        The model, and messages about changes to a default config.

    Raises:
        UserError: transformers is missing, or the config is unknown, invalid or too large
    """
    try:
        import transformers
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError:
        raise UserError(
            "hf: targets require transformers, which is not installed; run pip install "
            "'addnorm[interop]'"
        ) from None
    transformers.logging.set_verbosity_error()
    options: dict[str, Any] = {}
    family = name
    if name.endswith(".json") or (name and Path(name).is_dir()):
        options = _read_config(Path(name))
        family = str(options.pop("model_type", ""))
        if not family:
            raise UserError(f"{name}: expected a Hugging Face config.json, got no model_type")
    if family not in CONFIG_MAPPING:
        close = closest_names(family, CONFIG_MAPPING.keys())
        hint = f" did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise UserError(f"unknown Hugging Face family {family!r};{hint} or pass a config.json")
    for field, value in _iter_depths(options):
        check_at_most(field, value, MAX_DEPTH)
    try:
        config = CONFIG_MAPPING[family](**options)
    except Exception as problem:
        raise UserError(f"invalid config of {family!r}: {describe_exception(problem)}") from problem
    notes = []
    if depth is not None:
        check_at_most("--depth", depth, MAX_DEPTH)
        _set_depth(config, depth, family=family)
    elif not options:
        notes += _shrink_depth(config, family)
    check_memory(f"hf:{name}", 4 * (_estimate_weights(config) or 0))
    try:
        return build_from_config(config), notes
    except Exception as problem:
        raise UserError(f"building {family!r} failed: {describe_exception(problem)}") from problem


def _read_config(path: Path) -> dict[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        config = parse_json(path.read_text(encoding="utf-8"), nonfinite=True)
    except (OSError, ValueError) as problem:
        raise UserError(f"cannot read {str(path)!r}: {describe_exception(problem)}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: expected a Hugging Face config.json, got no JSON object")
    return config


def _iter_depths(options: Any, field: str = "") -> Iterator[tuple[str, int]]:
    """Yield the fields of a config, and of configs inside it, that hold numbers of layers."""
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from _iter_depths(value, str(name))
    elif isinstance(options, list):
        for value in options:
            yield from _iter_depths(value, field)
    elif type(options) is int and DEPTH_NAMES.fullmatch(field):
        yield field, options


def _estimate_weights(config: Any) -> int | None:
    """Return the number of weights of a model, from shallower ones if it is deep."""
    depth = max((value for _, value in _iter_depths(config.to_dict())), default=0)
    if depth <= MAX_COUNTED_DEPTH:
        return count_weights(config)
    counts = []
    for layers in (1, 2):
        shallow = copy.deepcopy(config)
        set_layers(shallow, layers)
        counts.append(count_weights(shallow))
    if counts[0] is None or counts[1] is None:
        return None
    return counts[0] + (counts[1] - counts[0]) * (depth - 1)


def build_from_config(config: Any) -> nn.Module:
    """Build the causal language model of decoder families, the bare model of all others."""
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    is_causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and getattr(config, "is_decoder", True)
    has_head = type(config) not in MODEL_MAPPING or (is_causal and not config.is_encoder_decoder)
    auto_class: Any = AutoModelForCausalLM if has_head else AutoModel
    return auto_class.from_config(config)


def _set_depth(config: Any, depth: int, *, family: str) -> None:
    """Set the number of layers; raise UserError if the family's depth is not set this way."""
    before = count_weights(config)
    if not set_layers(config, depth):
        raise UserError(f"--depth: the config of {family!r} has no number of layers; omit --depth")
    # An unchanged number of weights may also mean that the config had this depth already.
    if before is not None and count_weights(config) == before and set_layers(config, depth + 1):
        deeper = count_weights(config)
        set_layers(config, depth)
        if deeper == before:
            raise UserError(
                f"--depth {depth} has no effect on {family!r}, whose config sets the depth in "
                "another field; omit --depth or pass hf:./config.json"
            )


def set_layers(config: Any, depth: int) -> bool:
    """Set the depth of a config and of the configs inside it; return whether any has one."""
    names = [n for n in LAYER_COUNT_FIELDS if isinstance(getattr(config, n, None), int)]
    changed = False
    for name in (*names[:1], "decoder_layers", "num_decoder_layers"):
        if isinstance(getattr(config, name, None), int):
            changed |= _set_field(config, name, depth)
    layer_types = getattr(config, "layer_types", None)
    if isinstance(layer_types, list):
        _set_field(config, "layer_types", _shorten_layer_types(layer_types, depth))
    inner = [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return any([changed, *(set_layers(c, depth) for c in inner if c is not None)])


def _shorten_layer_types(types: list[Any], depth: int) -> list[Any]:
    """Return the types of the first layers, the last of them replaced by types that are missing.

    Hybrid models keep their keys and values in an attention layer, which is often the fourth.

    >>> _shorten_layer_types(["linear", "linear", "linear", "full"], 2)
    ['linear', 'full']
    """
    shortened = (types * depth)[:depth]
    missing = [kind for kind in dict.fromkeys(types) if kind not in shortened]
    return (shortened[: max(depth - len(missing), 1)] + missing)[:depth]


def _set_field(config: Any, name: str, value: Any) -> bool:
    """Set a field of a config; return False if the config computes it from other fields."""
    try:
        setattr(config, name, value)
    except (AttributeError, NotImplementedError):  # Bamba's layer types, Funnel's layers
        return False
    return True


def count_weights(config: Any) -> int | None:
    """Return the number of weights; None if the model cannot be built on the meta device."""
    with torch.device("meta"):
        try:
            return sum(weight.numel() for weight in build_from_config(config).parameters())
        except Exception:
            return None


def _shrink_depth(config: Any, family: str) -> list[str]:
    """Reduce the depth of a default config until it has at most MAX_DEFAULT_WEIGHTS weights."""
    for depth in (None, *REDUCED_DEPTHS):
        if depth is not None and not set_layers(config, depth):
            return []  # build it as it is
        count = count_weights(config)
        if count is None:
            return []
        if count <= MAX_DEFAULT_WEIGHTS:
            return [] if depth is None else [f"built {family} with {depth} layers only"]
    raise UserError(
        f"the default config of {family!r} has {count:,} weights even with 2 layers; pass a "
        "smaller one: hf:./config.json"
    )
