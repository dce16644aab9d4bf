"""`addnorm show`: the card of one norm, wiring or other registered member."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from addnorm.cli.member_facts import MemberFacts


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
    from addnorm.cli.registries import find_facts

    members = find_facts(name)
    if json:
        write_json(
            [
                {"family": member.family, "call": member.call, **member.card}
                | {"values": member.values}
                for member in members
            ]
        )
        return
    console = make_console()
    parts: list[RenderableType] = []
    for member in members:
        parts += [*([""] if parts else []), *_member(console, member)]
    write_page(console, *parts)


def _member(console: "Console", member: "MemberFacts") -> "list[RenderableType]":
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    kind, card = member.kind, member.card
    parts: list[RenderableType] = [
        Text.assemble((member.call, "bold"), f"  {card['title']}, {_article(kind)} {kind}"),
        Text(card["summary"]),
        *_render_diagrams(console, member),
    ]
    for heading, rows in member.sections:
        parts += ["", Text(heading, style="bold cyan")]
        table = Table.grid(padding=(0, 2, 0, 0))
        for cells in rows:
            table.add_row(*(Text(cell, overflow="fold") for cell in cells))
        if len(table.columns) > 1:
            table.columns[0].max_width = max(18, console.width // 3)
        parts.append(Padding(table, (0, 0, 0, 2), expand=False))
    return parts


def _render_diagrams(console: "Console", member: "MemberFacts") -> "list[RenderableType]":
    """Return the diagrams as text; empty if the terminal is too narrow."""
    from rich.padding import Padding
    from rich.text import Text

    from addnorm.cli.member_facts import draw_member

    diagrams = member.diagrams
    if diagrams is None:
        diagrams = draw_member(member.family, member.call)
    parts: list[RenderableType] = []
    for title, text in diagrams:
        if console.is_terminal and max(map(len, text.splitlines())) + 2 > console.width:
            return []
        heading = [title] if title else []
        parts += ["", *heading, Padding(Text(text, no_wrap=True), (0, 0, 0, 2), expand=False)]
    return parts


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
