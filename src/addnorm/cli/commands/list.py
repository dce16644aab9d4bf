"""`addnorm list`: the members of a registry."""

from dataclasses import dataclass
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
    needs_no_warmup: Annotated[
        bool, typer.Option("--needs-no-warmup", help="Only wirings recommended without warm-up")
    ] = False,
    folds_to: Annotated[
        str | None,
        typer.Option("--folds-to", metavar="WIRING", help="Only wirings that fold into this one"),
    ] = None,
    year: Annotated[
        int | None, typer.Option("--year", help="Only members whose paper is of this year")
    ] = None,
) -> None:
    """List norms, wirings and other families with formula and paper."""
    from addnorm.cli.output import make_console, write_json, write_page

    filters = Filters(needs_no_warmup, folds_to, year)
    if family is None and (needs_no_warmup or folds_to is not None):
        family = "wirings"
    if family is None and not filters.are_set:
        counts = {name: len(read_cards(name)) for name in FAMILIES}
        if json:
            write_json([{"family": name, "count": count} for name, count in counts.items()])
        else:
            write_page(make_console(), _counts(counts))
        return
    if family is None:
        cards = filters.select("members", _read_all_cards())
    else:
        cards = filters.select(family, read_cards(family))
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


@dataclass(frozen=True)
class Filters:
    """Conditions on the members of a list."""

    needs_no_warmup: bool = False
    folds_to: str | None = None
    year: int | None = None

    @property
    def are_set(self) -> bool:
        """Whether there is any condition."""
        return self.needs_no_warmup or self.folds_to is not None or self.year is not None

    def select(self, family: str, cards: list[CardFacts]) -> list[CardFacts]:
        """Return the cards that meet the conditions.

        Raises:
            UserError: no card meets them, or the family has no such facts
        """
        from addnorm.core.errors import UserError

        if family != "wirings" and (self.needs_no_warmup or self.folds_to is not None):
            raise UserError(
                f"expected the family wirings with --needs-no-warmup or --folds-to, got {family}"
            )
        targets = sorted({card["folds_to"] for card in cards if card.get("folds_to")})
        if self.folds_to is not None and self.folds_to not in targets:
            raise UserError(
                f"--folds-to: expected one of {', '.join(targets)}, got {self.folds_to!r}"
            )
        selected = [
            card
            for card in cards
            if (not self.needs_no_warmup or card["warmup"] == 0)
            and (self.folds_to is None or card["folds_to"] == self.folds_to)
            and (self.year is None or card["year"] == self.year)
        ]
        if not selected and self.are_set:
            raise UserError(f"no {family} meet these conditions; leave out one of them")
        return selected


def _read_all_cards() -> list[CardFacts]:
    """Return the cards of all families, each in a group of the family's name."""
    return [{**card, "group": name} for name in FAMILIES for card in read_cards(name)]


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
        cells = [card["name"], card["title"], card["formula"], card["paper"]]
        table.add_row(*cells, *([card["group"]] if card["group"] else []))
    return table


def _table(cards: list[CardFacts], *, wide: bool) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("title", max_width=22, overflow="fold")
    table.add_column("formula", ratio=1, overflow="fold")
    table.add_column("year", no_wrap=True)
    if wide:
        table.add_column("arXiv", no_wrap=True)
    for index, card in enumerate(cards):
        if card["group"] and (index == 0 or cards[index - 1]["group"] != card["group"]):
            table.add_row(Text(card["group"], style="dim"))
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
    for index, card in enumerate(cards):
        if card["group"] and (index == 0 or cards[index - 1]["group"] != card["group"]):
            parts.append(Text(card["group"], style="dim"))
        year = f", {card['year']}" if card["year"] else ""
        parts.append(Text.assemble((card["name"], "bold"), f"  {card['title']}{year}"))
        parts.append(Padding(Text(card["formula"], overflow="fold"), (0, 0, 0, 2)))
    return parts
