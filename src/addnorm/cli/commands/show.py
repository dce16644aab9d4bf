"""`addnorm show`: the card of one norm, wiring or other registered member."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from addnorm.cli.registries import find_members, get_registry

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from addnorm.core.calls import Call
    from addnorm.core.cards import Card, Option

SectionRows = list[tuple[str, ...]]
"""Rows of one cell, or of a name and its description."""


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name or call string, such as b2t or 'layer(eps=1e-6)'"
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list of cards")] = False,
) -> None:
    """Show formula, paper, options and diagram of one member."""
    from addnorm.cli.output import make_console, write_json, write_page

    members = find_members(name)
    if json:
        write_json(
            [
                {
                    "family": family,
                    "call": str(call),
                    **card.to_dict(),
                    "values": _option_values(card, call),
                }
                for family, card, call in members
            ]
        )
        return
    console = make_console()
    parts: list[RenderableType] = []
    for family, card, call in members:
        parts += [*([""] if parts else []), *_member(console, family, card, call)]
    write_page(console, *parts)


def _member(console: "Console", family: str, card: "Card", call: "Call") -> "list[RenderableType]":
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    kind = get_registry(family).family
    parts: list[RenderableType] = [
        Text.assemble((str(call), "bold"), f"  {card.title}, {_article(kind)} {kind}"),
        Text(card.summary),
    ]
    if family in ("wirings", "presets"):
        parts += _render_diagram(console, family, call)
    for heading, rows in _sections(family, card, call):
        parts += ["", Text(heading, style="bold cyan")]
        table = Table.grid(padding=(0, 2, 0, 0))
        for cells in rows:
            table.add_row(*(Text(cell, overflow="fold") for cell in cells))
        if len(table.columns) > 1:
            table.columns[0].max_width = max(18, console.width // 3)
        parts.append(Padding(table, (0, 0, 0, 2), expand=False))
    return parts


def _render_diagram(console: "Console", family: str, call: "Call") -> "list[RenderableType]":
    """Return the diagram of one layer as text; empty if the terminal is too narrow."""
    from rich.padding import Padding
    from rich.text import Text

    from addnorm.report.diagram.draw import build_blocks
    from addnorm.report.diagram.layout import compute_layout
    from addnorm.report.diagram.text_art import render_text

    parts: list[RenderableType] = []
    for block in build_blocks(call.name if family == "presets" else str(call)):
        text = render_text(compute_layout(block))
        if console.is_terminal and max(map(len, text.splitlines())) + 2 > console.width:
            return []
        heading = [block.title] if family == "presets" else []
        parts += ["", *heading, Padding(Text(text, no_wrap=True), (0, 0, 0, 2), expand=False)]
    return parts


def _sections(family: str, card: "Card", call: "Call") -> list[tuple[str, SectionRows]]:
    """Return headings with their rows; empty sections are left out."""
    from addnorm.train.schedules.base import recommended_schedule

    values = _option_values(card, call)
    options = (card.options or {}).items()
    sections: list[tuple[str, SectionRows]] = [
        ("Formula", [(line,) for line in card.formula.split("; ")]),
        ("Where", list(card.symbols)),
        ("Paper", [(card.paper,)]),
        (
            "Options",
            [(f"{name}={values[name]}", _describe_option(option)) for name, option in options],
        ),
        ("Schedule", [(recommended_schedule(call),)] if family == "wirings" else []),
        ("Needs", [(need,) for need in card.needs]),
        ("Equal at start", [(f"{one} = {other}",) for one, other in card.reduces_to]),
        ("Left open by the paper", [(card.undefined,)] if card.undefined else []),
        ("Departures from the paper", [("-", departure) for departure in card.departures]),
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
    from pydantic import TypeAdapter

    from addnorm.core.registry import INNER_CALL_MARKER

    inner = INNER_CALL_MARKER in getattr(option.type, "__metadata__", ())
    value_type = (
        "call string" if inner else _describe_schema(TypeAdapter(option.type).json_schema())
    )
    return f"{value_type}; default {option.default}"


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


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
    return " ".join([kind, *bounds])
