"""Keys and values from `key=value` arguments and YAML files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from addnorm.core.errors import UserError


def parse_key_values(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse `key=value` arguments; values are YAML scalars, lists or call strings.

    >>> parse_key_values(["dim=128", "norm=rms(eps=1e-6)"])
    {'dim': 128, 'norm': 'rms(eps=1e-6)'}
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UserError(f"cannot parse {pair!r}; expected key=value, such as dim=128")
        if name.strip() in values:
            raise UserError(f"{name.strip()} is passed twice; remove one of them")
        values[name.strip()] = _parse_value(text, pair)
    return values


def _parse_value(text: str, pair: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        if "(" in text:  # a call string, whose characters have another meaning in YAML
            return text
        raise UserError(f"cannot parse {pair!r}; expected key=value, such as dim=128") from None


def load_yaml(file: Path, description: str) -> dict[str, Any]:
    """Read the keys of a YAML file.

    Args:
        file: the file
        description: what the file is, for error messages
    """
    if not file.is_file():
        raise UserError(f"no {description} at {file}: there is no such file; expected a YAML file")
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise UserError(f"{file} is not YAML ({' '.join(str(problem).split())})") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise UserError(f"{file} contains no keys; expected lines such as `dim: 128`")
    return values


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(name) for name, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.YAMLError(f"{name!r} appears twice, line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)
