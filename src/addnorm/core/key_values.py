"""Keys with their values, as people write them: words on a command line, or YAML."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from addnorm.core.errors import UserError


def parse_key_values(pairs: Iterable[str]) -> dict[str, Any]:
    """The values of `key=value` words."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UserError(f"cannot read {pair!r}; wanted key=value, such as dim=128")
        if name.strip() in values:
            raise UserError(f"{name.strip()} is given twice; keep one of them")
        values[name.strip()] = _parse_value(text, pair)
    return values


def _parse_value(text: str, pair: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        if "(" in text:  # a call string may hold what YAML has other uses for
            return text
        raise UserError(f"cannot read {pair!r}; wanted key=value, such as dim=128") from None


def load_yaml(file: Path, description: str) -> dict[str, Any]:
    """The keys of a YAML file; what: the word for it in refusals."""
    if not file.is_file():
        raise UserError(f"no {description} at {file}: there is no such file; wanted YAML")
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise UserError(f"{file} is not YAML ({' '.join(str(problem).split())})") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise UserError(f"{file} holds no keys; wanted lines such as `dim: 128`")
    return values


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a key that is given twice is refused."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """As usual, but each key once."""
        names = [self.construct_object(name) for name, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.YAMLError(f"{name!r} is given twice, line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)
