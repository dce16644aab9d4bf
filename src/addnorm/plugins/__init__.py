"""Plugins: code outside this package that registers wirings, norms, tasks, optimizers, schedules.

They come from installed packages (entry points of the group `addnorm.plugins`), from `--plugin` on
the command line, or from `addnorm.register` in a script or notebook.
"""

from addnorm.plugins.loading import load_plugin
from addnorm.plugins.plugin import Plugin, describe_plugin, find_plugins

__all__ = ["Plugin", "describe_plugin", "find_plugins", "load_plugin"]
