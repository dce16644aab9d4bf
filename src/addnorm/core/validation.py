"""Bounded numbers of configs, and one-line messages for pydantic validation errors.

Counts are bounded because libraries do not reject absurd ones: they overflow, abort the process, or
run forever.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from addnorm.core.errors import closest_names

MAX_COUNT = 2**31 - 1
MAX_DEPTH = 10_000
MAX_VOCAB = 2_000_000

PositiveInt = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]
Depth = Annotated[int, Field(ge=1, le=MAX_DEPTH, strict=True)]
"""Number of layers."""
VocabSize = Annotated[int, Field(ge=1, le=MAX_VOCAB, strict=True)]


def format_validation_error(error: ValidationError, known: Sequence[str]) -> str:
    """Return the first error of a config as one line.

    Args:
        error: the error that pydantic raised
        known: all field names, for a suggestion if a field is unknown
    """
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        close = closest_names(name, known)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "remove it"
        return f"unknown config field {name!r}; {hint}"
    if first["type"] == "missing":
        return f"missing config field {name!r}; pass {name}=..."
    if not name or first["type"] == "value_error":  # raised by a validator of ours
        return str(first["msg"]).removeprefix("Value error, ")
    return f"{name}: expected {expected_value(first)}, got {first['input']!r}"


def expected_value(error: Mapping[str, Any]) -> str:
    """Return what pydantic expected, as a noun phrase.

    >>> expected_value({"msg": "Input should be greater than 0"})
    'a number greater than 0'
    """
    expected = str(error["msg"]).removeprefix("Input should be ").partition(", unable to parse")[0]
    return f"a number {expected}" if expected.startswith(("greater", "less")) else expected
