"""Plugins whose members a comparison uses."""

import json
import pickle

from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks.function_registry import (
    FUNCTIONS,
    find_function,
    is_function_target,
)
from addnorm.core.cards import Card
from addnorm.models.presets import PRESETS, Preset
from addnorm.norms.base import registry as norms
from addnorm.plugins import Plugin, describe_plugin, find_plugins
from addnorm.plugins.digests import hash_parts
from addnorm.tasks import registry as tasks
from addnorm.train.optimizers.base import registry as optimizers
from addnorm.train.schedules.base import registry as schedules
from addnorm.wirings.base import registry as wirings

REGISTRIES = (wirings, norms, tasks, optimizers, schedules)


def find_used_plugins(spec: Comparison) -> tuple[Plugin, ...]:
    """Return the plugins that register a member of the spec: wiring, norm, preset, task, ..."""
    text = json.dumps(spec.canonical_dict())
    presets = [preset for name, preset in PRESETS.own.items() if f'"{name}"' in text]
    text += "".join(preset.config.model_dump_json() for preset in presets)
    found = [*find_plugins(text, REGISTRIES), *map(describe_preset, presets)]
    plugins = {plugin.name: plugin for plugin in found}
    if spec.task in FUNCTIONS or is_function_target(spec.task):
        definition = find_function(spec.task)
        plugin = describe_plugin(definition.function, definition=definition)
        plugins[plugin.name] = plugin
    return tuple(plugins[name] for name in sorted(plugins))


def describe_preset(preset: Preset) -> Plugin:
    """Return a preset of one's own as a plugin; its config is the code."""
    card = Card(name=preset.name, title=preset.title, formula="", paper=preset.paper, summary="")
    digest = hash_parts([preset.config.model_dump_json()])
    return Plugin(f"preset {preset.name}", digest, pickled=pickle.dumps((card, preset.config)))


def find_changed_plugins(plugins: tuple[Plugin, ...], recorded: dict[str, str]) -> list[str]:
    """Return the names of the plugins that have changed since the comparison started.

    Args:
        plugins: those that the comparison uses now
        recorded: digests by name, from `facts.json`
    """
    return [each.name for each in plugins if recorded.get(each.name, each.digest) != each.digest]
