"""One-line messages for pydantic validation errors."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from addnorm.core.errors import UserError, closest_names

Data = TypeVar("Data")


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
        value: Data = _adapter(cast(Any, cls)).validate_python(data)
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
