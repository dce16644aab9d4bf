"""Digests of plugins: equal for equal code in every process, different once it has changed."""

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None), type(...))
IGNORED_ATTRIBUTES = {"__module__", "__qualname__", "__dict__", "__weakref__", "__firstlineno__"}


def hash_parts(parts: Iterable[object]) -> str:
    """Return a digest of parts with a stable `repr`."""
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:16]


def find_neighbours(path: Path, source: str) -> list[str]:
    """Return the sources of the files that a plugin file imports from its own folder.

    Imports are followed. Packages count with all their modules.

    Args:
        path: the file
        source: its content
    """
    found: dict[Path, str] = {}
    queue = [source]
    while queue:
        for name in sorted(_find_imported_names(queue.pop())):
            package = path.parent / name
            files = sorted(package.rglob("*.py")) if (package / "__init__.py").is_file() else []
            module = path.parent / f"{name}.py"
            for file in (*files, *([module] if module.is_file() else [])):
                if file not in found and file != path:
                    found[file] = file.read_text(encoding="utf-8")
                    queue.append(found[file])
    return [found[file] for file in sorted(found)]


def _find_imported_names(source: str) -> set[str]:
    """Return the first parts of the absolute imports of a source."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def iter_settings(definition: object) -> Iterator[object]:
    """Yield the plain fields of what a function registers, such as the metric of a task."""
    if definition is not None and is_dataclass(definition):
        for each in fields(definition):
            value = getattr(definition, each.name)
            if isinstance(value, PLAIN_TYPES):
                yield each.name, value


def iter_code_parts(value: Any) -> Iterator[object]:
    """Yield what a class or function of a script or notebook does, without addresses.

    Covered are its functions with their defaults, the plain attributes of a class, and what both
    use of the same script: functions, classes and constants.
    """
    yield from _iter_parts(value, value.__module__, seen=set())


def _iter_parts(value: Any, module: str, seen: set[int]) -> Iterator[object]:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, functools.cached_property):
        value = value.func
    if isinstance(value, property):
        for each in (value.fget, value.fset, value.fdel):
            yield from _iter_parts(each, module, seen)
    elif isinstance(value, PLAIN_TYPES):
        yield value
    elif isinstance(value, tuple | list):
        yield type(value).__name__, len(value)
        for each in value:
            yield from _iter_parts(each, module, seen)
    elif isinstance(value, frozenset | set):
        yield sorted(map(repr, value))
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name if isinstance(name, PLAIN_TYPES) else type(name).__name__
            yield from _iter_parts(each, module, seen)
    elif getattr(value, "__module__", None) == module and id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, FunctionType):
            yield from _iter_function(value, module, seen)
        elif isinstance(value, type):
            yield from _iter_class(value, module, seen)


def _iter_class(value: type, module: str, seen: set[int]) -> Iterator[object]:
    for base in value.__bases__:
        yield base.__name__
        yield from _iter_parts(base, module, seen)
    for name, each in vars(value).items():
        if name not in IGNORED_ATTRIBUTES:
            yield name
            yield from _iter_parts(each, module, seen)


def _iter_function(value: FunctionType, module: str, seen: set[int]) -> Iterator[object]:
    yield from _iter_parts(value.__defaults__, module, seen)
    yield from _iter_parts(value.__kwdefaults__, module, seen)
    for cell in value.__closure__ or ():
        with suppress(ValueError):  # not assigned yet
            yield from _iter_parts(cell.cell_contents, module, seen)
    names: list[str] = []
    for part in _iter_code(value.__code__):
        if isinstance(part, CodeType):
            yield part.co_name, part.co_code, part.co_names
            names += part.co_names
        else:
            yield from _iter_parts(part, module, seen)
    for name in dict.fromkeys(names):
        if name in value.__globals__:
            yield name
            yield from _iter_parts(value.__globals__[name], module, seen)


def _iter_code(code: CodeType) -> Iterator[object]:
    """Yield a code object, its constants, and the same of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iter_code(constant)
        else:
            yield constant
