"""Other values to try for an option of a builder."""

import types
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
import torch.nn.functional as F
from torch import nn

MAX_TRIED_STRINGS = 8
"""Strings that are tried as values."""
KNOWN_NAMES: tuple[tuple[str, ...], ...] = (
    ("relu", "gelu", "silu", "tanh", "swish", "elu", "leaky_relu", "swiglu"),
    ("layer", "rms", "layernorm", "rmsnorm", "layer_norm", "rms_norm", "batchnorm", "batch"),
    ("pre", "post", "prenorm", "postnorm", "pre_norm", "post_norm", "sandwich"),
    ("mean", "max", "cls", "first", "last", "attention", "sum"),
    ("learned", "sinusoidal", "rotary", "rope", "alibi", "relative", "none"),
)
"""Names that options of Transformers commonly have, by kind."""
SIZE_WORDS = (
    "head", "layer", "depth", "dim", "hidden", "width", "ffn", "window", "expert", "kernel", "rank",
    "max_len", "max_position", "max_seq", "context", "block_size",
)  # fmt: skip
"""Parts of the names of options that are sizes of a network, which the forward pass must show."""
OTHER_WORDS = (
    "batch", "seed", "step", "epoch", "worker", "log", "drop", "checkpoint", "shard", "parallel",
    "cache", "token_id", "freeze", "frozen", "offload", "chunk",
)  # fmt: skip
KNOWN_CALLABLES: tuple[tuple[Any, ...], ...] = (
    (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh),
    (F.relu, F.gelu, F.silu, torch.tanh),
    (nn.LayerNorm, nn.RMSNorm, nn.Identity),
)


def is_size_name(name: str) -> bool:
    """Return whether the name of an integer option says that it is a size of the network.

    >>> is_size_name("num_heads"), is_size_name("batch_size"), is_size_name("seed")
    (True, False, False)
    """
    words = name.lower()
    return any(word in words for word in SIZE_WORDS) and not any(
        word in words for word in OTHER_WORDS
    )


def is_known_name(value: Any) -> bool:
    """Return whether a value names an activation, a norm, or another part of a Transformer."""
    return bool(_known_alternatives(value))


def alternative_values(
    build: Callable[..., Any], name: str, *, value: Any, model: nn.Module
) -> list[Any]:
    """Return other values to try; empty if the allowed values are unknown.

    A fraction is also tried at 0.9, so that a dropout rate changes the dropped positions.

    Args:
        build: builder that takes the option
        name: name of the option
        value: its value
        model: the model that was built, whose classes may compare the option with strings
    """
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [value / 2 if value else 0.1, *([0.9] if 0 <= value < 0.9 else [])]
    if isinstance(value, int):
        smaller = [v for v in (value // 2, 1) if 0 < v < value and is_size_name(name)]
        return list(dict.fromkeys([value + 1, 2 * value or 2, *smaller]))
    if isinstance(value, Enum):
        return [other for other in type(value) if other is not value]
    if value is None:
        return _alternatives_to_none(build, name)
    known = _known_alternatives(value)
    if not isinstance(value, str):
        return known
    literals = _literals(_hint(build, name))
    compared = [s for code in _iter_codes(build, model) for s in _compared_strings(code, value)]
    allowed = literals or [*_string_constants(_code(build)), *known, *compared]
    others = [other for other in dict.fromkeys(allowed) if other != value]
    return others if literals else others[: max(MAX_TRIED_STRINGS, len(known))]


def _known_alternatives(value: Any) -> list[Any]:
    """Return the values of the same kind as a known name, class or function."""
    if isinstance(value, str):
        groups = (names for names in KNOWN_NAMES if value.lower() in names)
        return [other for names in groups for other in names if other != value.lower()]
    groups = (each for each in KNOWN_CALLABLES if any(value is other for other in each))
    return [other for each in groups for other in each if other is not value]


def _alternatives_to_none(build: Callable[..., Any], name: str) -> list[Any]:
    """Return a value of each type that an option may have besides None."""
    hint = _hint(build, name)
    if get_origin(hint) not in (Union, types.UnionType):
        return []
    by_type: dict[Any, list[Any]] = {bool: [True], float: [0.5], int: [1, 2]}
    types_ = get_args(hint)
    values = [v for each in types_ for v in by_type.get(each, [])]
    return values + [v for each in types_ for v in _literals(each)]


def _options_callable(build: Any) -> Any:
    """Return the function that receives the options: `__init__` of a class."""
    return vars(build).get("__init__", build) if isinstance(build, type) else build


def _code(function: Any) -> Any:
    return getattr(_options_callable(function), "__code__", None)


def _hint(build: Callable[..., Any], name: str) -> Any:
    """Return the annotation of an option; None if it has none."""
    try:
        return get_type_hints(_options_callable(build)).get(name)
    except Exception:  # an annotation that cannot be evaluated
        return None


def _literals(hint: Any) -> list[Any]:
    """Return the values of a `Literal` annotation."""
    return list(get_args(hint)) if get_origin(hint) is Literal else []


def _string_constants(code: Any) -> list[str]:
    """Return the identifiers among the string constants of a function.

    A builder compares an option with them, as in `if norm == "rms"`.
    """
    constants: list[Any] = []
    for each in getattr(code, "co_consts", ()):  # the keys of a dict are one tuple
        constants += each if isinstance(each, tuple | frozenset) else [each]
    strings = [each for each in constants if isinstance(each, str)]
    return [each for each in strings if each.isidentifier()][:MAX_TRIED_STRINGS]


def _iter_codes(build: Any, model: nn.Module) -> Iterator[Any]:
    """Yield the code of the functions that may read an option: those of the model's classes."""
    kinds = {type(module) for module in model.modules()}
    for kind in sorted(kinds, key=lambda kind: kind.__qualname__):
        if not kind.__module__.startswith("torch."):
            for method in ("__init__", "forward"):
                yield getattr(vars(kind).get(method), "__code__", None)


def _compared_strings(code: Any, value: str) -> list[str]:
    """Return the strings of a function that uses `value` as one of them."""
    strings = _string_constants(code)
    return strings if value in strings else []
