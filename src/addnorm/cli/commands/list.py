"""`addnorm list`: what there is to choose from."""

from typing import TYPE_CHECKING, Annotated

import typer

from addnorm.cli.registries import FAMILIES, get_registry

if TYPE_CHECKING:
    from rich.console import RenderableType

    from addnorm.core.cards import Card

MIN_WIDE_COLUMNS, MIN_TABLE_COLUMNS = (
    90,
    64,
)  # terminal columns from which on there is room for all; below which for little


def list_members(
    family: Annotated[
        str | None,
        typer.Argument(
            metavar="FAMILY", help=f"One of {', '.join(FAMILIES)}; they are counted if left out."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="All that the cards say, as a JSON list.")
    ] = False,
) -> None:
    """List norms, wirings and the like, with formula and paper."""
    from addnorm.cli.output import make_console, write_json, write_page

    if family is None:
        counts = {name: len(get_registry(name)) for name in FAMILIES}
        if json:
            write_json([{"family": name, "count": count} for name, count in counts.items()])
        else:
            write_page(make_console(), _counts(counts))
        return
    cards = get_registry(family).cards()
    if json:
        write_json([card.to_dict() for card in cards])
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


def _plain(cards: "list[Card]") -> "RenderableType":
    """One line a member, for grep."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for card in cards:
        table.add_row(card.name, card.title, card.formula, card.paper)
    return table


def _table(cards: "list[Card]", *, wide: bool) -> "RenderableType":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("title", max_width=22, overflow="fold")
    table.add_column("formula", ratio=1, overflow="fold")
    table.add_column("year", no_wrap=True)
    if wide:
        table.add_column("arXiv", no_wrap=True)
    for card in cards:
        cells = [card.name, card.title, card.formula, str(card.year or ""), card.arxiv or ""]
        table.add_row(*cells[: len(table.columns)])
    return table


def _stacked(cards: "list[Card]") -> "list[RenderableType]":
    """Name, title and year, the formula below: for terminals without room for columns."""
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = []
    for card in cards:
        year = f", {card.year}" if card.year else ""
        parts.append(Text.assemble((card.name, "bold"), f"  {card.title}{year}"))
        parts.append(Padding(Text(card.formula, overflow="fold"), (0, 0, 0, 2)))
    return parts
