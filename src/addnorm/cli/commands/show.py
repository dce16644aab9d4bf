"""`addnorm show`: all that is known about one norm, wiring or other member."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from addnorm.cli.registries import find, registry_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from addnorm.core.calls import Call
    from addnorm.core.cards import Card, Option

Lines = list[tuple[str, ...]]  # of one cell, or of a word and what is said about it


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A name or a call string, such as b2t or 'layer(eps=1e-6)'."
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="The same as a JSON list of cards.")] = False,
) -> None:
    """Show all about one of them: formula, paper, options."""
    from addnorm.cli.output import page, write_json, write_page

    found = find(name)
    if json:
        write_json(
            [
                {
                    "family": family,
                    "call": str(call),
                    **card.to_dict(),
                    "values": _values(card, call),
                }
                for family, card, call in found
            ]
        )
        return
    console = page()
    parts: list[RenderableType] = []
    for family, card, call in found:
        parts += [*([""] if parts else []), *_member(console, family, card, call)]
    write_page(console, *parts)


def _member(console: "Console", family: str, card: "Card", call: "Call") -> "list[RenderableType]":
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    kind = registry_of(family).family
    parts: list[RenderableType] = [
        Text.assemble((str(call), "bold"), f"  {card.title}, {_article(kind)} {kind}"),
        Text(card.summary),
    ]
    if family in ("wirings", "presets"):
        parts += _drawing(console, family, call)
    for words, lines in _sections(family, card, call):
        parts += ["", Text(words, style="bold cyan")]
        table = Table.grid(padding=(0, 2, 0, 0))
        for cells in lines:
            table.add_row(*(Text(cell, overflow="fold") for cell in cells))
        if len(table.columns) > 1:
            table.columns[0].max_width = max(18, console.width // 3)
        parts.append(Padding(table, (0, 0, 0, 2), expand=False))
    return parts


def _drawing(console: "Console", family: str, call: "Call") -> "list[RenderableType]":
    """One layer in characters, if the terminal has room for it."""
    from rich.padding import Padding
    from rich.text import Text

    from addnorm.report.diagram.draw import drawn
    from addnorm.report.diagram.layout import layout
    from addnorm.report.diagram.text_art import typed

    parts: list[RenderableType] = []
    for block in drawn(call.name if family == "presets" else str(call)):
        text = typed(layout(block))
        if console.is_terminal and max(map(len, text.splitlines())) + 2 > console.width:
            return []
        heading = [block.title] if family == "presets" else []
        parts += ["", *heading, Padding(Text(text, no_wrap=True), (0, 0, 0, 2), expand=False)]
    return parts


def _sections(family: str, card: "Card", call: "Call") -> list[tuple[str, Lines]]:
    """Headings with their lines; those with nothing to say are left out."""
    from addnorm.train.schedules.base import recommended

    values = _values(card, call)
    options = (card.options or {}).items()
    sections: list[tuple[str, Lines]] = [
        ("Formula", [(line,) for line in card.formula.split("; ")]),
        ("Where", list(card.symbols)),
        ("Paper", [(card.paper,)]),
        ("Options", [(f"{name}={values[name]}", _said(option)) for name, option in options]),
        ("Schedule", [(recommended(call),)] if family == "wirings" else []),
        ("Needs", [(need,) for need in card.needs]),
        ("Equal at start", [(f"{one} = {other}",) for one, other in card.reduces_to]),
        ("Left open by the paper", [(card.undefined,)] if card.undefined else []),
        ("Departures from the paper", [("-", departure) for departure in card.departures]),
    ]
    return [(words, lines) for words, lines in sections if lines]


def _values(card: "Card", call: "Call") -> dict[str, Any]:
    """Every option with the value it has in this call."""
    from addnorm.core.calls import Call

    values = {name: option.default for name, option in (card.options or {}).items()}
    values |= call.options
    return {
        name: str(value) if isinstance(value, Call) else value for name, value in values.items()
    }


def _said(option: "Option") -> str:
    """What an option takes, and its default."""
    from pydantic import TypeAdapter

    from addnorm.core.registry import INNER

    inner = INNER in getattr(option.type, "__metadata__", ())
    taken = "call string" if inner else _taken(TypeAdapter(option.type).json_schema())
    return f"{taken}; default {option.default}"


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


# How the words of a JSON schema are said to a person.
KINDS = {
    "boolean": "True or False",
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "null": "None",
    "array": "tuple",
}
BOUNDS = {
    "exclusiveMinimum": "above",
    "minimum": "from",
    "exclusiveMaximum": "below",
    "maximum": "to",
}


def _taken(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_taken(branch) for branch in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = KINDS.get(schema.get("type", ""), "anything")
    bounds = [f"{word} {schema[key]:g}" for key, word in BOUNDS.items() if key in schema]
    return " ".join([kind, *bounds])
