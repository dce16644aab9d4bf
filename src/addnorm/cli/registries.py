"""Registries that `addnorm list` and `addnorm show` know.

Each registry is imported on first use: the import loads torch. `read_facts` and `find_facts` use
the index instead where they can.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from addnorm.cli.index import read_section
from addnorm.cli.member_facts import MemberFacts, describe_member

if TYPE_CHECKING:
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


def _activations() -> "Registry[Any]":
    from addnorm.sublayers.activations import registry

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
    "activations": _activations,
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


def read_cards(family: str) -> list[dict[str, Any]]:
    """Return the cards of a family as JSON data.

    Raises:
        UnknownNameError: there is no such family
    """
    members = read_section(family) if family in FAMILIES else None
    if members is None:
        return [card.to_dict() for card in get_registry(family).cards()]
    return [member["card"] for member in members]


def find_facts(text: str) -> list[MemberFacts]:
    """Return the facts of each member that a call string can mean.

    Several families can have a member of the same name, such as `none`. Members that do not have
    the options of the call are left out.

    Raises:
        UnknownNameError: no family has a member of this name
        UserError: no member accepts the options; the message is that of the first family
    """
    name = text.strip()
    sections = {} if "(" in name else {family: read_section(family) for family in FAMILIES}
    if not sections or None in sections.values():
        return _find_in_registries(text)
    members = [
        MemberFacts(**member)
        for section in sections.values()
        for member in section
        if member["card"]["name"] == name
    ]
    if not members:
        _raise_unknown(name, (m["card"]["name"] for s in sections.values() for m in s))
    return members


def _find_in_registries(text: str) -> list[MemberFacts]:
    from addnorm.core.calls import Call
    from addnorm.core.errors import UserError

    registries = {family: get_registry(family) for family in FAMILIES}
    name = Call.parse(text).name if "(" in text else text.strip()
    candidates = {family: registry for family, registry in registries.items() if name in registry}
    if not candidates:
        _raise_unknown(name, (each for registry in registries.values() for each in registry))
    members, errors = [], []
    for family, registry in candidates.items():
        try:
            members.append(describe_member(family, registry, text))
        except UserError as error:
            errors.append(error)
    if not members:
        raise errors[0]
    return members


def _raise_unknown(name: str, known: Iterable[str]) -> None:
    from addnorm.core.errors import UnknownNameError, unknown_name_message

    choices = "`addnorm list` shows all names"
    raise UnknownNameError(
        unknown_name_message("name", name, dict.fromkeys(known), choices=choices)
    )
