"""Registries that `addnorm list` and `addnorm show` know.

Each registry is imported on first use: the import loads torch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from addnorm.core.calls import Call
    from addnorm.core.cards import Card
    from addnorm.core.registry import Registry


def _norms() -> "Registry[Any]":
    from addnorm.norms import registry

    return registry


def _wirings() -> "Registry[Any]":
    from addnorm.wirings import registry

    return registry


def _scales() -> "Registry[Any]":
    from addnorm.scales import registry

    return registry


def _schedules() -> "Registry[Any]":
    from addnorm.train.schedules.base import registry

    return registry


def _optimizers() -> "Registry[Any]":
    from addnorm.train.optimizers.base import registry

    return registry


def _tasks() -> "Registry[Any]":
    from addnorm.tasks import registry

    return registry


def _positions() -> "Registry[Any]":
    from addnorm.sublayers.positions import registry

    return registry


def _qk_norms() -> "Registry[Any]":
    from addnorm.sublayers.qk_norm import registry

    return registry


def _presets() -> "Registry[Any]":
    from addnorm.models.presets import registry

    return cast("Registry[Any]", registry)  # presets have cards, but are not classes


def _claims() -> "Registry[Any]":
    from addnorm.claims import registry

    return registry


FAMILIES: "dict[str, Callable[[], Registry[Any]]]" = {
    "norms": _norms,
    "wirings": _wirings,
    "scales": _scales,
    "schedules": _schedules,
    "optimizers": _optimizers,
    "tasks": _tasks,
    "positions": _positions,
    "qk_norms": _qk_norms,
    "presets": _presets,
    "claims": _claims,
}
"""Loader of the registry of each family."""


def get_registry(family: str) -> "Registry[Any]":
    """Return the registry of a family.

    Raises:
        UnknownNameError: there is no such family
    """
    from addnorm.core.errors import UnknownNameError, unknown_name_message
    from addnorm.core.registry import load_entry_points

    if family not in FAMILIES:
        raise UnknownNameError(unknown_name_message("family", family, FAMILIES))
    registry = FAMILIES[family]()
    load_entry_points()
    return registry


def find_members(text: str) -> "list[tuple[str, Card, Call]]":
    """Return (family, card, canonical call) of each member that a call string can mean.

    Several families can have a member of the same name, such as `none`. Members that do not have
    the options of the call are left out.

    Raises:
        UnknownNameError: no family has a member of this name
        UserError: no member accepts the options; the message is that of the first family
    """
    from addnorm.core.calls import Call
    from addnorm.core.errors import UnknownNameError, UserError, unknown_name_message

    registries = {family: get_registry(family) for family in FAMILIES}
    name = Call.parse(text).name if "(" in text else text.strip()
    candidates = {family: registry for family, registry in registries.items() if name in registry}
    if not candidates:
        known = dict.fromkeys(name for registry in registries.values() for name in registry)
        choices = "`addnorm list` shows all names"
        raise UnknownNameError(unknown_name_message("name", name, known, choices=choices))
    members, errors = [], []
    for family, registry in candidates.items():
        try:
            members.append((family, registry.card(name), registry.resolve(text)))
        except UserError as error:
            errors.append(error)
    if not members:
        raise errors[0]
    return members
