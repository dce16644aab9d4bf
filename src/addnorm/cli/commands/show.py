"""`addnorm show`: all that is known about one norm, wiring or other member."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from addnorm.cli.registries import find_members, get_registry

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from addnorm.core.calls import Call
    from addnorm.core.cards import Card, Option

SectionRows = list[tuple[str, ...]]  # of one cell, or of a word and what is said about it


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
    from addnorm.cli.output import make_console, write_json, write_page

    found = find_members(name)
    if json:
        write_json(
            [
                {
                    "family": family,
                    "call": str(call),
                    **card.to_dict(),
                    "values": _option_values(card, call),
                }
                for family, card, call in found
            ]
        )
        return
    console = make_console()
    parts: list[RenderableType] = []
    for family, card, call in found:
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
    for words, lines in _sections(family, card, call):
        parts += ["", Text(words, style="bold cyan")]
        table = Table.grid(padding=(0, 2, 0, 0))
        for cells in lines:
            table.add_row(*(Text(cell, overflow="fold") for cell in cells))
        if len(table.columns) > 1:
            table.columns[0].max_width = max(18, console.width // 3)
        parts.append(Padding(table, (0, 0, 0, 2), expand=False))
    return parts


def _render_diagram(console: "Console", family: str, call: "Call") -> "list[RenderableType]":
    """One layer in characters, if the terminal has room for it."""
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
    """Headings with their lines; those with nothing to say are left out."""
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
    return [(words, lines) for words, lines in sections if lines]


def _option_values(card: "Card", call: "Call") -> dict[str, Any]:
    """Every option with the value it has in this call."""
    from addnorm.core.calls import Call

    values = {name: option.default for name, option in (card.options or {}).items()}
    values |= call.options
    return {
        name: str(value) if isinstance(value, Call) else value for name, value in values.items()
    }


def _describe_option(option: "Option") -> str:
    """What an option takes, and its default."""
    from pydantic import TypeAdapter

    from addnorm.core.registry import INNER_CALL_MARKER

    inner = INNER_CALL_MARKER in getattr(option.type, "__metadata__", ())
    taken = "call string" if inner else _describe_schema(TypeAdapter(option.type).json_schema())
    return f"{taken}; default {option.default}"


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


# How the words of a JSON schema are said to a person.
TYPE_LABELS = {
    "boolean": "True or False",
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "null": "None",
    "array": "tuple",
}
BOUND_LABELS = {
    "exclusiveMinimum": "above",
    "minimum": "from",
    "exclusiveMaximum": "below",
    "maximum": "to",
}


def _describe_schema(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_describe_schema(branch) for branch in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = TYPE_LABELS.get(schema.get("type", ""), "anything")
    bounds = [f"{word} {schema[key]:g}" for key, word in BOUND_LABELS.items() if key in schema]
    return " ".join([kind, *bounds])
