"""One-line messages for pydantic validation errors."""

from collections.abc import Sequence

from pydantic import ValidationError

from addnorm.core.errors import closest_names


def format_validation_error(error: ValidationError, known: Sequence[str]) -> str:
    """Return the first error of a config as one line: the field, what is expected, what was passed.

    Args:
        error: the error that pydantic raised
        known: all field names, for the suggestion when a field is unknown
    """
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        close = closest_names(name, known)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "leave it out"
        return f"a config has no {name!r}; {hint}"
    if first["type"] == "missing":
        return f"a config needs {name!r}; pass {name}=..."
    if not name or first["type"] == "value_error":  # raised by a validator of ours
        return str(first["msg"]).removeprefix("Value error, ")
    expected = str(first["msg"]).removeprefix("Input should be ")
    return f"{name} cannot be {first['input']!r}; wanted {expected}"
