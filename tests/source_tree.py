"""The modules of the package and who imports whom, read from the source text."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "addnorm"
FILES = sorted(SOURCE.rglob("*.py"))


class ImportedModule(NamedTuple):
    line: int
    name: str
    only_for_types: bool
    """Whether the import stands under `if TYPE_CHECKING:` and never runs."""


def module_name(path: Path) -> str:
    """Return `addnorm.wirings.b2t` for `wirings/b2t.py`; a package has the name of its folder."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def find_imports(path: Path) -> Iterator[ImportedModule]:
    """Yield every import of a file, those inside functions included.

    `from addnorm.kernels import library` counts as an import of `addnorm.kernels.library`.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    only_for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full path"
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else str(node.module) for name in members]
        else:
            continue
        for name in names:
            yield ImportedModule(node.lineno, name, id(node) in only_for_types)


def find_module_strings(source: str) -> set[str]:
    """Return the strings in a file that name a module of the package or the beginning of one.

    Docstrings are left out.

    >>> find_module_strings('loaded = sys.modules["addnorm.report.theme"]')
    {'addnorm.report.theme'}
    """
    tree = ast.parse(source)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in statements
        and re.fullmatch(r"addnorm\.[\w.]*", node.value)
    }


DYNAMIC_IMPORTS = {
    *("import_module", "__import__", "resolve_name", "run_module", "run_path"),
    *("exec_module", "load_module"),
}
"""Functions of importlib, pkgutil and runpy that import a module by name."""


def find_dynamic_imports(source: str) -> set[str]:
    """Return the functions that import by name, or run source text, which a file mentions.

    >>> find_dynamic_imports("from importlib import import_module as load")
    {'import_module'}
    """
    mentioned = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            mentioned |= {node.id} & (DYNAMIC_IMPORTS | {"exec", "eval"})
        elif isinstance(node, ast.Attribute):  # `model.eval()` is a method of torch
            mentioned |= {node.attr} & DYNAMIC_IMPORTS
        elif isinstance(node, ast.alias):
            mentioned |= {node.name.rpartition(".")[2]} & DYNAMIC_IMPORTS
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            mentioned |= {node.value} & DYNAMIC_IMPORTS  # `getattr(importlib, "import_module")`
    return mentioned


def find_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one member (Tarjan).

    >>> find_cycles({"a": {"b"}, "b": {"a"}, "c": {"a"}})
    [['a', 'b']]
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for successor in sorted(graph.get(node, ())):
            if successor not in index:
                visit(successor)
                low[node] = min(low[node], low[successor])
            elif successor in stack:
                low[node] = min(low[node], index[successor])
        if low[node] == index[node]:
            start = stack.index(node)
            component = stack[start:]
            del stack[start:]
            if len(component) > 1:
                cycles.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return cycles
