"""Keys and values from `key=value` arguments and YAML files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import read_yaml
from addnorm.core.parsing import parse_yaml


def parse_key_values(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse `key=value` arguments; values are YAML scalars, lists or call strings.

    >>> parse_key_values(["dim=128", "norm=rms(eps=1e-6)"])
    {'dim': 128, 'norm': 'rms(eps=1e-6)'}
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UserError(f"cannot parse {_shorten(pair)}; expected key=value, such as dim=128")
        if name.strip() in values:
            raise UserError(f"{name.strip()} is passed twice; remove one of them")
        values[name.strip()] = _parse_value(text, pair)
    return values


def _parse_value(text: str, pair: str) -> Any:
    try:
        return parse_yaml(text)
    except ValueError:
        if "(" in text:  # a call string, whose characters have another meaning in YAML
            return text
        raise UserError(
            f"cannot parse {_shorten(pair)}; expected key=value, such as dim=128"
        ) from None


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def load_yaml(file: Path, description: str, *, verify: bool = False) -> dict[str, Any]:
    """Read the keys of a YAML file.

    Args:
        file: the file
        description: what the file is, for error messages
        verify: whether the file is a record that `write_yaml` wrote, whose checksum must match;
            otherwise it may be a copy that was edited
    """
    if not file.is_file():
        raise UserError(f"no {description} at {file}: there is no such file; expected a YAML file")
    values = read_yaml(file, verify=verify)
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise UserError(f"{file} contains no keys; expected lines such as `dim: 128`")
    return values
