"""What can be listed and shown: every family of members that have cards."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from addnorm.core.calls import Call
    from addnorm.core.cards import Card
    from addnorm.core.registry import Registry

# Where the registry of each family lives. They are imported on use: it takes torch.
FAMILIES = {
    "norms": "addnorm.norms",
    "wirings": "addnorm.wirings",
    "schedules": "addnorm.train.schedules.base",
    "optimizers": "addnorm.train.optimizers.base",
    "tasks": "addnorm.tasks",
    "positions": "addnorm.sublayers.positions",
    "qk_norms": "addnorm.sublayers.qk_norm",
    "presets": "addnorm.models.presets",
    "claims": "addnorm.claims",
}


def get_registry(family: str) -> "Registry[Any]":
    """The registry of a family; a word that is none is refused with the nearest."""
    from addnorm.core.errors import UnknownNameError, unknown_name_message

    if family not in FAMILIES:
        raise UnknownNameError(unknown_name_message("family", family, FAMILIES))
    registry: Registry[Any] = import_module(FAMILIES[family]).registry
    return registry


def find_members(text: str) -> "list[tuple[str, Card, Call]]":
    """(family, card, canonical call) of every member that a call string may mean.

    A name can stand in several families, as `none` does. Options that only one of them takes
    decide; options that nobody takes are refused as the first family refuses them.
    """
    from addnorm.core.calls import Call
    from addnorm.core.errors import UnknownNameError, UserError, unknown_name_message

    registries = {family: get_registry(family) for family in FAMILIES}
    name = Call.parse(text).name if "(" in text else text.strip()
    holders = {family: registry for family, registry in registries.items() if name in registry}
    if not holders:
        known = dict.fromkeys(name for registry in registries.values() for name in registry)
        kinds = " or ".join(registry.family for registry in registries.values())
        raise UnknownNameError(unknown_name_message(kinds, name, known))
    found, refusals = [], []
    for family, registry in holders.items():
        try:
            found.append((family, registry.card(name), registry.resolve(text)))
        except UserError as refusal:
            refusals.append(refusal)
    if not found:
        raise refusals[0]
    return found
