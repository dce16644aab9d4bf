"""Plugins that a comparison uses: recorded by digest, and loaded again in the process of a cell.

How a class reaches another process depends on where it was defined:

- in a module of an installed package: imported by name;
- in a Python file: its source is sent along, so that the file need not exist on the other machine;
- in a script or notebook (`__main__`): the class itself is sent, by cloudpickle. It lives in memory
  only, except in the jobs of SLURM, which are read with a checksum.
"""

import inspect
import pickle
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import PLUGIN_GROUP, Registry, find_registry, register
from addnorm.plugins.digests import (
    find_neighbours,
    hash_parts,
    iter_code_parts,
    iter_settings,
)
from addnorm.plugins.loading import FILE_MODULE_PREFIX, load_plugin, load_source

CARD_FIELDS = (
    *("name", "title", "formula", "paper", "summary", "group", "folds_to"),
    *("needs", "reduces_to", "undefined"),
)
"""Fields of a card that its author writes; the registry reads the others from the class."""


@runtime_checkable
class Definition(Protocol):
    """What a function registers, such as a task of a comparison."""

    def register(self) -> None:
        """Make it known in this process, unless it is known already."""


@dataclass(frozen=True)
class Plugin:
    """Code that registers members; picklable, so that another process can load it."""

    name: str
    """Module, path of a file, or the member's name if it was defined in a script or notebook."""
    digest: str
    """Hash of the source, of the files beside it that it imports, and of the package's version."""
    version: str = ""
    """Version of the installed package, if it has one."""
    source: str = ""
    """Content of a plugin file."""
    pickled: bytes = b""
    """Card and class of a member of a script or notebook, card and config of a preset, or a
    `Definition`."""

    def load(self) -> None:
        """Register the members in this process, unless they are registered already."""
        if self.pickled:
            content = pickle.loads(self.pickled)  # imports cloudpickle itself where it is needed
            if isinstance(content, Definition):
                content.register()
                return
            card, member = content
            # A child process may have run the script itself, as `__mp_main__`.
            if card.name not in find_registry(member):
                register(card)(member)
        elif self.source:
            load_source(Path(self.name), self.source)
        else:
            load_plugin(self.name)


def find_plugins(text: str, registries: Iterable[Registry[Any]]) -> tuple[Plugin, ...]:
    """Return the plugins whose members a text names.

    Args:
        text: call strings, such as a spec as JSON
        registries: the families to search
    """
    words = set(re.findall(r"\w+", text))
    plugins: dict[str, Plugin] = {}
    for registry in registries:
        for name in words.intersection(registry):
            member = registry.member(name)
            if not is_builtin(member):
                plugin = describe_plugin(member, registry.card(name))
                plugins[plugin.name] = plugin
    return tuple(plugins[name] for name in sorted(plugins))


def is_builtin(member: object) -> bool:
    """Return whether a member belongs to addnorm itself."""
    return str(getattr(member, "__module__", "")).startswith("addnorm.")


def describe_plugin(
    member: Any, card: Card | None = None, *, definition: Definition | None = None
) -> Plugin:
    """Return the plugin that defines a class or function.

    Args:
        member: the class or function
        card: card of a registered class, needed if it was defined in a script or notebook
        definition: what a function registers, needed if it was defined there
    """
    module = sys.modules.get(member.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or member.__module__ in ("__main__", "__mp_main__"):
        return _describe_by_value(member, card, definition)
    source = Path(file).read_text(encoding="utf-8") if Path(file).is_file() else ""
    source = source or inspect.getsource(module)
    if member.__module__.startswith(FILE_MODULE_PREFIX):
        digest = hash_parts([source, *find_neighbours(Path(file), source)])
        return Plugin(str(file), digest, source=source)
    version = _find_version(module)
    # An installed file of no package lies beside all other installed packages.
    is_followed = "." in member.__module__ or not version
    neighbours = find_neighbours(Path(file), source) if is_followed else []
    return Plugin(member.__module__, hash_parts([source, version, *neighbours]), version=version)


def _describe_by_value(
    member: Any, card: Card | None, definition: Definition | None = None
) -> Plugin:
    try:
        import cloudpickle
    except ImportError:
        raise UserError(
            f"{member.__name__} is defined in a script or notebook; install cloudpickle, or move "
            "it into a file and use --plugin FILE"
        ) from None
    plain = Card(**{f: getattr(card, f) for f in CARD_FIELDS}) if card else None
    content = (plain, member) if definition is None else definition
    digest = hash_parts([plain, *iter_code_parts(member), *iter_settings(definition)])
    return Plugin(member.__name__, digest, pickled=cloudpickle.dumps(content))


def _find_version(module: ModuleType) -> str:
    package = module.__name__.split(".")[0]
    for name in metadata.packages_distributions().get(package, []):
        return metadata.version(name)
    # Some editable installations do not list their packages.
    for each in metadata.entry_points(group=PLUGIN_GROUP):
        if each.module.split(".")[0] == package and each.dist is not None:
            return each.dist.version
    return str(getattr(module, "__version__", ""))
