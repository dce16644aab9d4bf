"""Reference pages: one per public package, from its `__all__`."""

import inspect
from importlib import import_module

import addnorm

PACKAGES = (
    *("addnorm", "addnorm.stacks", "addnorm.models", "addnorm.norms", "addnorm.wirings"),
    *("addnorm.sublayers", "addnorm.data", "addnorm.measure", "addnorm.doctor", "addnorm.monitor"),
    *("addnorm.decode", "addnorm.tasks", "addnorm.train", "addnorm.tabular", "addnorm.comparison"),
    *("addnorm.claims", "addnorm.report", "addnorm.interop", "addnorm.exporters", "addnorm.core"),
)


def reference_pages() -> dict[str, str]:
    """Return the reference page of each package."""
    return {f"reference/{name}.md": reference_page(name) for name in PACKAGES}


def reference_page(package: str) -> str:
    """Return the page of a package: its docstring and the classes and functions in `__all__`.

    The top-level package repeats names of others. They are described on its page, and the others
    only link to it, so that every name is indexed once.
    """
    module = import_module(package)
    parts = [f"# {package}", inspect.getdoc(module) or ""]
    for name in sorted(getattr(module, "__all__", ()), key=str.lower):
        value = getattr(module, name)
        if not callable(value):
            continue
        if package != "addnorm" and getattr(addnorm, name, None) is value:
            parts.append(f"- [`{name}`](addnorm.md#{name.lower()})")
            continue
        directive = "autoclass" if inspect.isclass(value) else "autofunction"
        block = ["```{eval-rst}", f".. {directive}:: {package}.{name}", "```"]
        parts.append("\n".join([f"## {name}", "", *block]))
    return "\n\n".join(parts) + "\n"
