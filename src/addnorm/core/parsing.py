"""Strict parsing of JSON and YAML.

Text that is invalid in any way raises a `ValueError` with a one-line reason: nesting that exhausts
the stack, duplicate keys, numbers without end, YAML aliases that multiply. Nothing else is raised.
"""

import json
from typing import Any

MAX_DEPTH = 100
"""Nested lists and objects; functions that recurse over the data rely on it."""
MAX_YAML_CHARACTERS = 2_000_000
"""Size of a YAML text; the parser is slow, and our files have a few thousand characters."""


def parse_json(text: str | bytes, *, nonfinite: bool = False) -> Any:
    """Parse JSON.

    Args:
        text: the text; bytes must be UTF-8
        nonfinite: whether NaN and infinities are allowed, which JSON does not have

    Raises:
        ValueError: the text is not JSON, or an object has a key twice

    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        data = json.loads(
            text,
            object_pairs_hook=_unique_dict,
            parse_constant=None if nonfinite else _reject_constant,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check_depth(data)
    return data


def parse_yaml(text: str) -> Any:
    """Parse YAML without aliases and duplicate keys.

    Raises:
        ValueError: the text is not such YAML
    """
    import yaml  # most commands read no YAML, and the library takes longer to import than ours

    from addnorm.core.yaml_loader import StrictLoader

    if len(text) > MAX_YAML_CHARACTERS:
        raise ValueError(f"longer than {MAX_YAML_CHARACTERS:,} characters")
    try:
        data = yaml.load(text, Loader=StrictLoader)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (yaml.YAMLError, ValueError) as problem:
        raise ValueError(" ".join(str(problem).split())) from None
    except (TypeError, LookupError, AttributeError, OverflowError):
        # The library's constructors of tagged values, such as `!!bool 3`, fail in many ways.
        raise ValueError("a value does not fit its tag") from None
    _check_depth(data)
    return data


def _unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{name!r} appears twice")
    return data


def _reject_constant(name: str) -> Any:
    raise ValueError(f"expected a number, got {name}")


def _check_depth(data: Any) -> None:
    """Raise `ValueError` for data nested deeper than `MAX_DEPTH`, without recursion."""
    level, depth = [data], 0
    while level := [
        each
        for value in level
        if isinstance(value, dict | list)
        for each in (value.values() if isinstance(value, dict) else value)
        if isinstance(each, dict | list)
    ]:
        depth += 1
        if depth >= MAX_DEPTH:
            raise ValueError("nested too deeply")
