"""Bounds of sizes and counts, and one-line messages for pydantic validation errors.

Counts are bounded because libraries do not reject absurd ones: they overflow, abort the process, or
run forever.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from addnorm.core.errors import UserError, closest_names

Data = TypeVar("Data")

# A larger size is a mistake, and torch would fail late or exhaust the memory.
MAX_WIDTH = 2**17
MAX_DEPTH = 10_000
MAX_VOCAB = 2**24
MAX_SIZE = 2**20
MAX_COUNT = 2**31 - 1

PositiveInt = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]
Size = Annotated[int, Field(ge=1, le=MAX_SIZE, strict=True)]
"""Size of an axis, or a number of modules."""
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH, strict=True)]
"""Number of features."""
Depth = Annotated[int, Field(ge=1, le=MAX_DEPTH, strict=True)]
"""Number of layers."""
VocabSize = Annotated[int, Field(ge=1, le=MAX_VOCAB, strict=True)]


class FrozenConfig(BaseModel):
    """Settings that cannot be changed; invalid ones raise `UserError` with a one-line message."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    owner: ClassVar[str] = "config"
    """What the fields belong to, for messages about unknown and missing ones."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            known = list(type(self).model_fields)
            raise UserError(format_validation_error(error, known, owner=self.owner)) from None


def check_at_most(name: str, value: int, limit: int) -> None:
    """Raise `UserError` for a size beyond its limit."""
    if value > limit:
        raise UserError(f"{name}: expected at most {limit}, got {value}")


def check_path(name: str, path: Any) -> None:
    """Raise `UserError` unless the value is a path."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"{name}: expected the path of a folder, got {type(path).__name__}")


def check_memory(what: str, num_bytes: int) -> None:
    """Raise `UserError` if tensors need more memory than the machine has."""
    try:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on this platform
        return
    if num_bytes > available:
        raise UserError(
            f"{what}: expected weights that fit into the memory of {available / 2**30:.3g} GiB, "
            f'got {num_bytes / 2**30:.3g} GiB; reduce the sizes, or build on device="meta"'
        )


def format_validation_error(
    error: ValidationError, known: Sequence[str], *, owner: str = "config"
) -> str:
    """Return the first error of a config as one line.

    Args:
        error: the error that pydantic raised
        known: all field names, for a suggestion if a field is unknown
        owner: what the fields belong to
    """
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        close = closest_names(name, known)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "remove it"
        return f"unknown {owner} field {name!r}; {hint}"
    if first["type"] == "missing":
        return f"missing {owner} field {name!r}; pass {name}=..."
    if not name or first["type"] == "value_error":  # raised by a validator of ours
        return str(first["msg"]).removeprefix("Value error, ")
    return f"{name}: expected {expected_value(first)}, got {first['input']!r}"


def parse_dataclass(cls: type[Data], data: Any, source: str) -> Data:
    """Build a dataclass from JSON data, after checking the type of every field.

    Args:
        cls: the dataclass
        data: an object with its fields; those with a default may be missing
        source: where the data come from, for error messages

    Raises:
        UserError: the data are not an object, or a field is missing, unknown or has another type
    """
    if not isinstance(data, dict):
        raise UserError(f"{source}: expected an object, got {type(data).__name__}")
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    try:
        if unknown := [name for name in data if name not in names]:
            raise UserError(f"{source}: unknown field {unknown[0]!r}")
        value: Data = _adapter(cls).validate_python(data)  # type: ignore[arg-type]
        return value
    except ValidationError as error:
        raise UserError(f"{source}: {format_validation_error(error, names)}") from None


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def expected_value(error: Mapping[str, Any]) -> str:
    """Return what pydantic expected, as a noun phrase.

    >>> expected_value({"msg": "Input should be greater than 0"})
    'a number greater than 0'
    """
    expected = str(error["msg"]).removeprefix("Input should be ").partition(", unable to parse")[0]
    return f"a number {expected}" if expected.startswith(("greater", "less")) else expected
