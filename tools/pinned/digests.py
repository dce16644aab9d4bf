"""Helpers that reduce modules, folders and JSON data to the names and hashes that are pinned."""

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn

SOURCE = Path(__file__).parents[2] / "src" / "addnorm"


def hash_json(value: Any) -> str:
    """Return the first 16 hex digits of the sha256 of a value as JSON with sorted keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def list_keys(value: Any, prefix: str = "") -> list[str]:
    """Return the sorted dotted paths of all keys in nested JSON data, numbers replaced by N."""
    paths: set[str] = set()
    if isinstance(value, Mapping):
        for key, item in value.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            paths |= {path, *list_keys(item, path)}
    elif isinstance(value, list | tuple):
        for item in value:
            paths.update(list_keys(item, f"{prefix}[]"))
    return list_patterns(paths)


def list_patterns(keys: Iterable[str]) -> list[str]:
    """Return the sorted distinct keys, every path element that is a number replaced by N."""
    return sorted({re.sub(r"(?<![^.|])\d+(?![^.|])", "N", key) for key in keys})


def read_json_keys(path: Path) -> list[str]:
    """Return the key paths of a JSON file."""
    return list_keys(json.loads(path.read_text(encoding="utf-8")))


def list_files(folder: Path) -> list[str]:
    """Return the sorted relative paths of all files in a folder that are not hidden."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    )


def list_tensor_names(path: Path) -> list[str]:
    """Return the patterns of the tensor names in a safetensors file."""
    with safe_open(path, framework="pt") as file:
        return list_patterns(file.keys())


def summarize_state_dict(module: nn.Module) -> str:
    """Return the number of keys of a state_dict and the hash of its names, shapes and dtypes."""
    entries = [
        [name, list(value.shape), str(value.dtype)]
        for name, value in sorted(module.state_dict().items())
    ]
    return f"{len(entries)} keys, sha256 {hash_json(entries)}"


def list_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name and the default value of every field of a pydantic model."""
    return {
        name: "required" if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in fields.items()
    }


def walk_sources() -> Iterable[ast.AST]:
    """Yield every node of the syntax trees of the package's source files."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))
