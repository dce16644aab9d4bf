"""`addnorm list`: the members of a registry."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from addnorm.cli.registries import FAMILIES, read_cards

if TYPE_CHECKING:
    from rich.console import RenderableType

CardFacts = dict[str, Any]
"""A card as JSON data; see `Card.to_dict`."""

MIN_WIDE_COLUMNS, MIN_TABLE_COLUMNS = 90, 64
"""Terminal widths from which on the list is a table with all columns, and a table at all."""


def list_members(
    family: Annotated[
        str | None,
        typer.Argument(
            metavar="FAMILY", help=f"One of {', '.join(FAMILIES)}; without it, count each"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list of cards")] = False,
) -> None:
    """List norms, wirings and other families with formula and paper."""
    from addnorm.cli.output import make_console, write_json, write_page

    if family is None:
        counts = {name: len(read_cards(name)) for name in FAMILIES}
        if json:
            write_json([{"family": name, "count": count} for name, count in counts.items()])
        else:
            write_page(make_console(), _counts(counts))
        return
    cards = read_cards(family)
    if json:
        write_json(cards)
        return
    console = make_console()
    if not console.is_terminal:
        write_page(console, _plain(cards))
    elif console.width < MIN_TABLE_COLUMNS:
        write_page(console, *_stacked(cards))
    else:
        write_page(console, _table(cards, wide=console.width >= MIN_WIDE_COLUMNS))


def _counts(counts: dict[str, int]) -> "RenderableType":
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for name, count in counts.items():
        table.add_row(name, str(count), f"addnorm list {name}")
    return table


def _plain(cards: list[CardFacts]) -> "RenderableType":
    """Return one line for each member, which suits grep."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for card in cards:
        table.add_row(card["name"], card["title"], card["formula"], card["paper"])
    return table


def _table(cards: list[CardFacts], *, wide: bool) -> "RenderableType":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("title", max_width=22, overflow="fold")
    table.add_column("formula", ratio=1, overflow="fold")
    table.add_column("year", no_wrap=True)
    if wide:
        table.add_column("arXiv", no_wrap=True)
    for card in cards:
        cells = [
            card["name"],
            card["title"],
            card["formula"],
            str(card["year"] or ""),
            card["arxiv"] or "",
        ]
        table.add_row(*cells[: len(table.columns)])
    return table


def _stacked(cards: list[CardFacts]) -> "list[RenderableType]":
    """Return each formula below its name, for terminals too narrow for a table."""
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = []
    for card in cards:
        year = f", {card['year']}" if card["year"] else ""
        parts.append(Text.assemble((card["name"], "bold"), f"  {card['title']}{year}"))
        parts.append(Padding(Text(card["formula"], overflow="fold"), (0, 0, 0, 2)))
    return parts
