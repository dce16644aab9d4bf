"""What `addnorm show` and `addnorm list` print about a registered member, as plain data."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from addnorm.core.calls import Call
    from addnorm.core.cards import Card, Option
    from addnorm.core.registry import Registry

SectionRows = list[list[str]]
"""Rows of one cell, or of a name and its description."""
DRAWN_FAMILIES = ("wirings", "presets")


@dataclass(frozen=True)
class MemberFacts:
    """A member with the options of a call, as JSON data."""

    family: str
    kind: str
    """What a member of the family is called."""
    call: str
    """Canonical call string."""
    card: dict[str, Any]
    values: dict[str, Any]
    """Every option with its value in the call."""
    sections: list[tuple[str, SectionRows]]
    """Headings with their rows."""
    diagrams: list[tuple[str, str]] | None = None
    """Title and text of each diagram; None if they are not drawn yet."""


def describe_member(family: str, registry: "Registry[Any]", text: str) -> MemberFacts:
    """Return the facts about the member that a call string names, without its diagrams."""
    call = registry.resolve(text)
    card = registry.card(call.name)
    values = _option_values(card, call)
    sections = _make_sections(family, card, call, values)
    return MemberFacts(family, registry.family, str(call), card.to_dict(), values, sections)


def draw_member(family: str, call: str) -> list[tuple[str, str]]:
    """Return title and text of the diagrams of a wiring or preset; a wiring needs no title."""
    from addnorm.report.diagram.draw import build_blocks
    from addnorm.report.diagram.layout import compute_layout
    from addnorm.report.diagram.text_art import render_text

    if family not in DRAWN_FAMILIES:
        return []
    is_preset = family == "presets"
    return [
        (block.title if is_preset else "", render_text(compute_layout(block)))
        for block in build_blocks(call.partition("(")[0] if is_preset else call)
    ]


def _make_sections(
    family: str, card: "Card", call: "Call", values: dict[str, Any]
) -> list[tuple[str, SectionRows]]:
    """Return headings with their rows; empty sections are left out."""
    from addnorm.train.schedules.base import recommended_schedule

    options = (card.options or {}).items()
    sections: list[tuple[str, SectionRows]] = [
        ("Formula", [[line] for line in card.formula.split("; ") if line]),
        ("Where", [list(symbol) for symbol in card.symbols]),
        ("Paper", [[card.paper]] if card.paper else []),
        (
            "Options",
            [[f"{name}={values[name]}", _describe_option(option)] for name, option in options],
        ),
        ("Schedule", [[recommended_schedule(call)]] if family == "wirings" else []),
        ("Needs", [[need] for need in card.needs]),
        ("Equal at start", [[f"{one} = {other}"] for one, other in card.reduces_to]),
        ("Left open by the paper", [[card.undefined]] if card.undefined else []),
        ("Departures from the paper", [["-", departure] for departure in card.departures]),
    ]
    return [(heading, rows) for heading, rows in sections if rows]


def _option_values(card: "Card", call: "Call") -> dict[str, Any]:
    """Return every option with its value in this call."""
    from addnorm.core.calls import Call

    values = {name: option.default for name, option in (card.options or {}).items()}
    values |= call.options
    return {
        name: str(value) if isinstance(value, Call) else value for name, value in values.items()
    }


def _describe_option(option: "Option") -> str:
    """Return type, bounds and default of an option."""
    return f"{describe_values(option)}; default {option.default}"


def describe_values(option: "Option") -> str:
    """Return type and bounds of the values of an option, such as `number > 0 or None`."""
    from pydantic import TypeAdapter

    from addnorm.core.registry import INNER_CALL_MARKER

    if INNER_CALL_MARKER in getattr(option.type, "__metadata__", ()):
        return "call string"
    return _describe_schema(TypeAdapter(option.type).json_schema())


# Display names of the types and bounds of a JSON schema.
TYPE_LABELS = {
    "boolean": "True or False",
    "integer": "integer",
    "number": "number",
    "string": "text",
    "null": "None",
    "array": "tuple",
}
BOUND_LABELS = {
    "exclusiveMinimum": ">",
    "minimum": ">=",
    "exclusiveMaximum": "<",
    "maximum": "<=",
}


def _describe_schema(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_describe_schema(branch) for branch in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = TYPE_LABELS.get(schema.get("type", ""), "any value")
    bounds = [f"{sign} {schema[key]:g}" for key, sign in BOUND_LABELS.items() if key in schema]
    return f"{kind} {' and '.join(bounds)}".rstrip()
