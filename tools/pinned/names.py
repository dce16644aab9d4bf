"""Names that users type: registry members, claims, commands, public names and doctor rules."""

from typing import Any

import addnorm
from addnorm.claims.claim import registry as claims
from addnorm.cli.main import COMMANDS
from addnorm.cli.registries import FAMILIES, get_registry
from addnorm.doctor.rules import RULES
from tools.pinned.digests import hash_json


def pin_families() -> Any:
    """Return names, options and hashes of the cards that `addnorm list FAMILY --json` prints."""
    pins: dict[str, Any] = {"families": list(FAMILIES), "card keys": set()}
    for family in FAMILIES:
        cards = [card.to_dict() for card in get_registry(family).cards()]
        pins["card keys"] |= set().union(*cards)
        texts = {
            card["name"]: hash_json([card["title"], card["formula"], card["paper"]])
            for card in cards
        }
        if family == "claims":  # ids are pinned in a section of their own
            pins[family] = sorted(texts.values())
        elif family == "presets":
            pins[family] = {
                card["name"]: f"{texts[card['name']]}, options {hash_json(card['options'])}"
                for card in cards
            }
        else:
            pins[family] = {
                card["name"]: {"text": texts[card["name"]], "options": card["options"]}
                for card in cards
            }
    return pins | {"card keys": sorted(pins["card keys"])}


def pin_claim_ids() -> Any:
    """Return the ids of all claims."""
    return sorted(claims)


def pin_commands() -> Any:
    """Return the verbs of the command line, with the commands of those that are groups."""
    pins = {}
    for verb, command in COMMANDS.items():
        registered = getattr(command, "registered_commands", ())
        pins[verb] = sorted(each.name or each.callback.__name__ for each in registered)
    return pins


def pin_public_names() -> Any:
    """Return the public names of the package; each one must be importable."""
    for name in addnorm.__all__:
        getattr(addnorm, name)
    return sorted(addnorm.__all__)


def pin_doctor_rules() -> Any:
    """Return the ids of the rules of the doctor."""
    return sorted(RULES)
