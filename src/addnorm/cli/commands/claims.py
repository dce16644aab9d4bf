"""`addnorm claims`: published statements, measured again and judged."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from addnorm.claims import Result

claims = typer.Typer(help="Run published claims again and judge them.")

LISTED = ("id", "statement", "paper", "how", "cost at standard")
VERDICTS = ("id", "verdict", "statement", "what decides")
ROOM = 100
"""Columns below which a table is no longer read with ease."""
Json = Annotated[bool, typer.Option("--json", help="Print plain data as JSON.")]
Budget = Annotated[
    str, typer.Option(help="smoke (seconds, no verdict to trust), standard, or full.")
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of it all.")]
Workers = Annotated[int | None, typer.Option(help="Cells at a time; a core or a GPU each.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if a claim is not held, too.")]


@claims.command("list")
def list_claims(json: Json = False) -> None:
    """Every claim: its name, what it says, who said it, and what it costs."""
    from addnorm.claims import BUDGETS, registry
    from addnorm.cli.output import page, write_json, write_page

    if json:
        told = []
        for name in registry:
            card, claim = registry.card(name), registry.member(name)()
            told.append(
                {
                    "id": name,
                    "title": card.title,
                    "statement": card.summary,
                    "formula": card.formula,
                    "source": claim.source,
                    "paper": card.paper,
                    "place": claim.place,
                    "how": claim.how,
                    "experiment": claim.experiment,
                    "rule": claim.rule,
                    "corrected": claim.corrected,
                    "pilot": claim.pilot,
                    "cost": {budget: claim.cost(budget) for budget in BUDGETS},
                }
            )
        write_json(told)
        return
    console = page()
    write_page(console, *_shown(console, LISTED, _listed()))


@claims.command()
def run(
    names: Annotated[list[str], typer.Argument(metavar="ID...", help="Names of claims.")],
    budget: Budget = "standard",
    out: Out = Path("claims"),
    workers: Workers = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Run some claims; the same command goes on where it was interrupted."""
    _run(names, budget=budget, out=out, workers=workers, strict=strict, json=json)


@claims.command("all")
def run_all(
    budget: Budget = "standard",
    out: Out = Path("claims"),
    workers: Workers = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Run every claim; the same command goes on where it was interrupted."""
    from addnorm.claims import registry

    _run(list(registry), budget=budget, out=out, workers=workers, strict=strict, json=json)


def _run(
    names: list[str], *, budget: str, out: Path, workers: int | None, strict: bool, json: bool
) -> None:
    from addnorm.claims import BUDGETS, run_claims
    from addnorm.claims.runner import find
    from addnorm.cli.output import page, write_json, write_page
    from addnorm.cli.progress.claims import Talk
    from addnorm.comparison.engines import make_engine
    from addnorm.core.errors import UnknownName, unknown
    from addnorm.report.claims_page import write_claims_report

    known = next((each for each in BUDGETS if each == budget), None)
    if known is None:
        raise UnknownName(unknown("budget", budget, BUDGETS))
    training = any(claim.how == "by training" for claim in find(names))
    wanted = training or workers is not None  # a wrong number of workers is refused in any case
    engine = make_engine("local", workers=workers) if wanted else None
    talk = Talk()
    try:
        found = run_claims(names, out, budget=known, engine=engine, watch=talk)
    except BaseException:
        talk.close()
        if talk.ended_any:
            with suppress(Exception):  # what went wrong first is what must be told
                talk.said(f"the page: {write_claims_report(out)}")
        raise
    talk.close()
    if talk.ended_any:
        talk.said(f"the page: {write_claims_report(out)}")
    if json:
        write_json([_plain(result) for result in found.values()])
    else:
        console = page()
        write_page(console, *_shown(console, VERDICTS, _verdicts(found)))
    answers = {result.answer for result in found.values()}
    if "crashed" in answers or (strict and "not held" in answers):
        raise typer.Exit(1)


def _plain(result: "Result") -> dict[str, Any]:
    verdict = result.verdict.to_dict() if result.verdict else {"answer": result.answer}
    told = {"id": result.claim, "budget": result.budget, "why": result.why}
    return told | {"seconds": result.seconds} | verdict


def _listed() -> list[tuple[str, ...]]:
    from addnorm.claims import registry

    rows: list[tuple[str, ...]] = []
    for name in registry:
        card, claim = registry.card(name), registry.member(name)()
        rows.append((name, card.summary, claim.source, claim.how, claim.cost("standard")))
    return rows


def _verdicts(found: "dict[str, Result]") -> list[tuple[str, ...]]:
    from addnorm.claims import registry

    rows: list[tuple[str, ...]] = []
    for name, result in found.items():
        why = result.verdict.why if result.verdict else result.why
        rows.append((name, result.answer, registry.card(name).summary, why))
    return rows


def _shown(
    console: "Console", head: tuple[str, ...], rows: list[tuple[str, ...]]
) -> "list[RenderableType]":
    """A table; where it would be too narrow to read, a few lines for each row."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if console.width < ROOM:
        parts: list[RenderableType] = []
        for name, *cells in rows:
            parts.append(Text(name, style="bold"))
            parts += [Padding(Text(cell), (0, 0, 0, 2)) for cell in cells]
        return parts
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for number, title in enumerate(head):
        narrow: dict[str, Any] = {"no_wrap": True, "style": "bold"} if not number else {}
        table.add_column(title, overflow="fold", **narrow)
    for row in rows:
        table.add_row(*map(Text, row))
    return [table]
