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
    """Return the sources of the files that a plugin imports from its own package or folder.

    Imports are followed. A module of a package is followed inside the package only; a file of no
    package also into the packages beside it, which count with all their modules.

    Args:
        path: the file of the plugin
        source: its content
    """
    package, root = find_package(path)
    own = package.partition(".")[0]
    found: dict[Path, str] = {}
    queue = [(path, source)]
    while queue:
        for file in _find_imported_files(*queue.pop(), root, own):
            if file not in found and file != path:
                found[file] = file.read_text(encoding="utf-8")
                queue.append((file, found[file]))
    return [found[file] for file in sorted(found)]


def find_package(path: Path) -> tuple[str, Path]:
    """Return the package that a file belongs to, empty if to none, and the folder that holds it."""
    names: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names), folder


def _find_imported_files(path: Path, source: str, root: Path, own: str) -> Iterator[Path]:
    """Yield the files below `root` that a source imports, of the package `own` if there is one."""
    package = path.parent.relative_to(root).parts
    for names in sorted(_find_imported_names(source, package)):
        if own and names[0] != own:
            continue
        if not own and (root / names[0] / "__init__.py").is_file():
            yield from sorted((root / names[0]).rglob("*.py"))
        for count in range(1, len(names) + 1):  # the packages of a module run, too
            target = root.joinpath(*names[:count])
            for file in (target.with_name(f"{target.name}.py"), target / "__init__.py"):
                if file.is_file():
                    yield file


def _find_imported_names(source: str, package: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Return what a source of a package may import, as the parts of absolute names."""
    names: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            # A name of a package may be a module of it.
            names |= {base, *((*base, alias.name) for alias in node.names)}
    return names - {()}


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
