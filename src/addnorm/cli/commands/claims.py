"""`addnorm claims`: published statements, measured again and judged."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from addnorm.claims import Result

claims = typer.Typer(help="Run published claims again and judge them.")

LIST_COLUMNS = ("id", "statement", "paper", "how", "cost at standard")
VERDICT_COLUMNS = ("id", "verdict", "statement", "what decides")
MIN_TABLE_WIDTH = 100
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
    from addnorm.cli.output import make_console, write_json, write_page

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
                    "place": claim.paper_location,
                    "how": claim.method,
                    "experiment": claim.experiment,
                    "rule": claim.rule,
                    "corrected": claim.corrected,
                    "pilot": claim.pilot,
                    "cost": {budget: claim.cost(budget) for budget in BUDGETS},
                }
            )
        write_json(told)
        return
    console = make_console()
    write_page(console, *_render_table(console, LIST_COLUMNS, _claim_rows()))


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
    _run_selected(names, budget=budget, out=out, workers=workers, strict=strict, json=json)


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

    _run_selected(list(registry), budget=budget, out=out, workers=workers, strict=strict, json=json)


def _run_selected(
    names: list[str], *, budget: str, out: Path, workers: int | None, strict: bool, json: bool
) -> None:
    from addnorm.claims import BUDGETS, run_claims
    from addnorm.claims.runner import find_claims
    from addnorm.cli.output import make_console, write_json, write_page
    from addnorm.cli.progress.claims import ClaimsReporter
    from addnorm.comparison.engines import make_engine
    from addnorm.core.errors import UnknownNameError, unknown_name_message
    from addnorm.report.claims_page import write_claims_report

    known = next((each for each in BUDGETS if each == budget), None)
    if known is None:
        raise UnknownNameError(unknown_name_message("budget", budget, BUDGETS))
    training = any(claim.method == "by training" for claim in find_claims(names))
    wanted = training or workers is not None  # a wrong number of workers is refused in any case
    engine = make_engine("local", workers=workers) if wanted else None
    talk = ClaimsReporter()
    try:
        found = run_claims(names, out, budget=known, engine=engine, callback=talk)
    except BaseException:
        talk.close()
        if talk.has_results:
            with suppress(Exception):  # what went wrong first is what must be told
                talk.on_message(f"the page: {write_claims_report(out)}")
        raise
    talk.close()
    if talk.has_results:
        talk.on_message(f"the page: {write_claims_report(out)}")
    if json:
        write_json([_result_to_dict(result) for result in found.values()])
    else:
        console = make_console()
        write_page(console, *_render_table(console, VERDICT_COLUMNS, _verdicts(found)))
    answers = {result.answer for result in found.values()}
    if "crashed" in answers or (strict and "not held" in answers):
        raise typer.Exit(1)


def _result_to_dict(result: "Result") -> dict[str, Any]:
    verdict = result.verdict.to_dict() if result.verdict else {"answer": result.answer}
    told = {"id": result.claim, "budget": result.budget, "why": result.why}
    return told | {"seconds": result.seconds} | verdict


def _claim_rows() -> list[tuple[str, ...]]:
    from addnorm.claims import registry

    rows: list[tuple[str, ...]] = []
    for name in registry:
        card, claim = registry.card(name), registry.member(name)()
        rows.append((name, card.summary, claim.source, claim.method, claim.cost("standard")))
    return rows


def _verdicts(results: "dict[str, Result]") -> list[tuple[str, ...]]:
    from addnorm.claims import registry

    rows: list[tuple[str, ...]] = []
    for name, result in results.items():
        why = result.verdict.why if result.verdict else result.why
        rows.append((name, result.answer, registry.card(name).summary, why))
    return rows


def _render_table(
    console: "Console", head: tuple[str, ...], rows: list[tuple[str, ...]]
) -> "list[RenderableType]":
    """A table; where it would be too narrow to read, a few lines for each row."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if console.width < MIN_TABLE_WIDTH:
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
