"""Plugins whose members a comparison uses."""

import json

from addnorm.comparison.spec import Comparison
from addnorm.core.errors import UserError
from addnorm.norms.base import registry as norms
from addnorm.plugins import Plugin, find_plugins
from addnorm.tasks import registry as tasks
from addnorm.train.optimizers.base import registry as optimizers
from addnorm.train.schedules.base import registry as schedules
from addnorm.wirings.base import registry as wirings

REGISTRIES = (wirings, norms, tasks, optimizers, schedules)


def find_used_plugins(spec: Comparison) -> tuple[Plugin, ...]:
    """Return the plugins that register a wiring, norm, task, optimizer or schedule of the spec."""
    return find_plugins(json.dumps(spec.canonical_dict()), REGISTRIES)


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
