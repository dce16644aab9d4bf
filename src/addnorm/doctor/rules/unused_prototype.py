"""Rule `unused_prototype`: a layer that was copied into a list and is registered itself."""

from collections.abc import Iterator

from torch import nn

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


@rule("unused_prototype")
def unused_prototype(context: RuleContext) -> Iterator[Finding]:
    """Report modules that never run and look like the layers of a list that run.

    `self.layer = Layer(); self.layers = copies(self.layer)` registers one layer too many. Members
    of lists, such as experts that no token chose, and trees of one module are not reported.
    """
    modules = dict(context.trace.model.named_modules())
    ran = {prefix for node in context.graph for prefix in _prefixes(node.path)}
    used = {
        _signature(module)
        for path, module in modules.items()
        if path in ran and path.rpartition(".")[2].isdigit()
    }
    for path, module in modules.items():
        parent, _, name = path.rpartition(".")
        is_alone = path and path not in ran and not name.isdigit()
        is_inside = isinstance(modules.get(parent), nn.ModuleList | nn.ModuleDict)
        names = [n for n, _ in module.named_parameters(path)] if is_alone else []
        if not names or is_inside or not all(map(context.is_trainable, names)):
            continue
        if any(_is_read(context, n) for n in names):
            continue  # a function reads the weights without calling the module
        if any(module.children()) and _signature(module) in used:
            yield Finding(
                "unused_prototype", "warning", path,
                "this layer never runs and is built like layers of a list that run, as if it had "
                "been copied; its weights are counted and saved, but do not train; do not keep the "
                "prototype as an attribute",
                {"weights": len(names)},
            )  # fmt: skip


def _prefixes(path: str) -> Iterator[str]:
    """Yield a path and the paths of the modules around it."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _signature(module: nn.Module) -> tuple[object, ...]:
    """Return the class and the shapes of the weights of a module."""
    return (type(module), *((n, tuple(w.shape)) for n, w in module.named_parameters()))


def _is_read(context: RuleContext, name: str) -> bool:
    reads = context.cache.setdefault(
        "read weights",
        {o.name for node in context.graph for o in node.operands if o.kind == "weight"},
    )
    return name in reads
