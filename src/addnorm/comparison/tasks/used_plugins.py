"""Plugins whose members a comparison uses."""

import json

from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks.function_registry import (
    FUNCTIONS,
    find_function,
    is_function_target,
)
from addnorm.core.errors import UserError
from addnorm.norms.base import registry as norms
from addnorm.plugins import Plugin, describe_plugin, find_plugins
from addnorm.tasks import registry as tasks
from addnorm.train.optimizers.base import registry as optimizers
from addnorm.train.schedules.base import registry as schedules
from addnorm.wirings.base import registry as wirings

REGISTRIES = (wirings, norms, tasks, optimizers, schedules)


def find_used_plugins(spec: Comparison) -> tuple[Plugin, ...]:
    """Return the plugins that register a wiring, norm, task, optimizer or schedule of the spec."""
    plugins = {
        each.name: each for each in find_plugins(json.dumps(spec.canonical_dict()), REGISTRIES)
    }
    if spec.task in FUNCTIONS or is_function_target(spec.task):
        definition = find_function(spec.task)
        plugin = describe_plugin(definition.function, definition=definition)
        plugins[plugin.name] = plugin
    return tuple(plugins[name] for name in sorted(plugins))


def check_plugins(plugins: tuple[Plugin, ...], recorded: dict[str, str]) -> None:
    """Raise `UserError` if a plugin has changed since the comparison started.

    Args:
        plugins: those that the comparison uses now
        recorded: digests by name, from `facts.json`
    """
    for plugin in plugins:
        if recorded.get(plugin.name, plugin.digest) != plugin.digest:
            raise UserError(
                f"plugin {plugin.name} has changed since the comparison started; restore it, or "
                "start again with another output folder"
            )
