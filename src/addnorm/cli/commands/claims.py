"""`addnorm claims`: reproduce published statements and judge them."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from addnorm.claims import Result

claims = typer.Typer(help="Reproduce published claims and judge them.")

LIST_COLUMNS = ("id", "statement", "paper", "how", "cost at standard")
VERDICT_COLUMNS = ("id", "verdict", "statement", "what decides")
MIN_TABLE_WIDTH = 100
"""Terminal width below which rows are printed as paragraphs instead of a table."""
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON")]


@claims.command("list")
def list_claims(json: Json = False) -> None:
    """List all claims with statement, source and cost."""
    from addnorm.cli.index import read_section
    from addnorm.cli.output import make_console, write_json, write_page

    claims_facts = read_section("claim_list")
    if claims_facts is None:
        claims_facts = list_claim_facts()
    if json:
        write_json(claims_facts)
        return
    rows = [
        (each["id"], each["statement"], each["source"], each["how"], each["cost"]["standard"])
        for each in claims_facts
    ]
    console = make_console()
    write_page(console, *_render_table(console, LIST_COLUMNS, rows))


@claims.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Names of claims")] = None,
    all_claims: Annotated[bool, typer.Option("--all", help="Run every claim")] = False,
    budget: Annotated[
        str,
        typer.Option(help="smoke (seconds; tests the machinery, not the claim), standard or full"),
    ] = "standard",
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Output folder; unfinished claims in it are resumed"
        ),
    ] = Path("claims"),
    workers: Annotated[
        int | None, typer.Option(help="Cells at the same time, each on one core or GPU")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 if a claim is not held")
    ] = False,
    json: Json = False,
) -> None:
    """Run claims and print their verdicts.

    Rerun the same command to resume after an interruption. The exit code is 1 if a claim crashed.
    """
    from addnorm.claims import registry
    from addnorm.core.errors import UserError

    if all_claims == bool(names):
        raise UserError("expected the names of claims or --all; see `addnorm claims list`")
    selected = list(registry) if all_claims else names or []
    results = _run_selected(selected, budget=budget, out=out, workers=workers)
    _print_results(results, json=json)
    answers = {result.answer for result in results.values()}
    if "crashed" in answers or (strict and "not held" in answers):
        raise typer.Exit(1)


def _run_selected(
    names: list[str], *, budget: str, out: Path, workers: int | None
) -> "dict[str, Result]":
    from addnorm.claims import BUDGETS, run_claims
    from addnorm.claims.runner import find_claims
    from addnorm.cli.progress.claims import ClaimsReporter
    from addnorm.comparison.engines import make_engine
    from addnorm.core.errors import UnknownNameError, unknown_name_message
    from addnorm.report.claims_page import write_claims_report

    known = next((each for each in BUDGETS if each == budget), None)
    if known is None:
        raise UnknownNameError(unknown_name_message("budget", budget, BUDGETS))
    is_training = any(claim.method == "by training" for claim in find_claims(names))
    # Claims at initialization need no engine, but an invalid --workers must still be rejected.
    needs_engine = is_training or workers is not None
    engine = make_engine("local", workers=workers) if needs_engine else None
    reporter = ClaimsReporter()
    try:
        results = run_claims(names, out, budget=known, engine=engine, callback=reporter)
    except BaseException:
        reporter.close()
        if reporter.has_results:
            with suppress(Exception):  # the first error is the one to report
                reporter.on_message(f"report: {write_claims_report(out)}")
        raise
    reporter.close()
    if reporter.has_results:
        reporter.on_message(f"report: {write_claims_report(out)}")
    return results


def _print_results(results: "dict[str, Result]", *, json: bool) -> None:
    from addnorm.cli.output import make_console, write_json, write_page

    if json:
        write_json([_result_to_dict(result) for result in results.values()])
        return
    console = make_console()
    write_page(console, *_render_table(console, VERDICT_COLUMNS, _verdict_rows(results)))


def list_claim_facts() -> list[dict[str, Any]]:
    """Return what `addnorm claims list --json` prints."""
    from addnorm.claims import BUDGETS, registry

    data = []
    for name in registry:
        card, claim = registry.card(name), registry.member(name)()
        data.append(
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
    return data


def _result_to_dict(result: "Result") -> dict[str, Any]:
    verdict = result.verdict.to_dict() if result.verdict else {"answer": result.answer}
    data = {"id": result.claim, "budget": result.budget, "why": result.why}
    return data | {"seconds": result.seconds} | verdict


def _verdict_rows(results: "dict[str, Result]") -> list[tuple[str, ...]]:
    from addnorm.claims import registry

    rows: list[tuple[str, ...]] = []
    for name, result in results.items():
        why = result.verdict.why if result.verdict else result.why
        rows.append((name, result.answer, registry.card(name).summary, why))
    return rows


def _render_table(
    console: "Console", head: tuple[str, ...], rows: list[tuple[str, ...]]
) -> "list[RenderableType]":
    """Render rows as a table, or as paragraphs if the terminal is too narrow."""
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
