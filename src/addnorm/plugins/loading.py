"""Import of plugins: modules by name, and Python files by path."""

import hashlib
import importlib
import importlib.util
import linecache
import sys
import traceback
from pathlib import Path
from types import ModuleType

from addnorm.core.errors import UserError
from addnorm.plugins.digests import find_package

FILE_MODULE_PREFIX = "addnorm_plugin_"
"""Prefix of the names of modules that were loaded from a file."""


def load_plugin(target: str | Path) -> ModuleType:
    """Import a plugin, which registers its members; return its module.

    Args:
        target: name of a module, importable or below the working directory; or path of a Python
            file, which can import its neighbours, as a script can, and its own package

    Raises:
        UserError: there is no such module or file, or it raises an exception
    """
    path = Path(target)
    try:
        if path.suffix == ".py":
            if not path.is_file():
                raise UserError(f"plugin: expected a Python file, got {path}, which does not exist")
            return load_source(path.resolve(), path.read_text(encoding="utf-8"))
        return _import_module(str(target))
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if error.name != str(target).split(".")[0]:
            raise UserError(f"plugin {target}: {error}") from None
        raise UserError(
            f"plugin: expected a module or a Python file, got {target}, which cannot be imported"
        ) from None
    except Exception as error:
        raise UserError(f"plugin {target}: {_describe(error)}") from None


def _import_module(name: str) -> ModuleType:
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None and any(
        Path(each).exists() for each in (top, f"{top}.py")
    ):
        _extend_path(Path.cwd())  # as `python -m` does; commands do not have it
    return importlib.import_module(name)


def _extend_path(folder: Path) -> None:
    if folder.is_dir() and str(folder) not in sys.path:
        sys.path.append(str(folder))


def load_source(path: Path, source: str) -> ModuleType:
    """Run the source of a plugin file as a module; return the same module for the same file.

    Args:
        path: absolute path; it need not exist on this machine
        source: content of the file
    """
    name = FILE_MODULE_PREFIX + hashlib.sha256(str(path).encode()).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    # For tracebacks and inspect.getsource where the file does not exist.
    linecache.cache[str(path)] = (len(source), None, source.splitlines(keepends=True), str(path))
    module.__package__, root = find_package(path)
    _extend_path(path.parent)
    _extend_path(root)
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]  # so that the next attempt runs the file again
        raise
    return module


def _describe(error: Exception) -> str:
    """Return type, message and the last line of the plugin's own code."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} (line {error.lineno})"
    lines = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"
