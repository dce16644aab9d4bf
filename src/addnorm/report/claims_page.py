"""The page of claims: statement, source, experiment, measured numbers and verdict of each."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from addnorm.claims import RULE, Check, Claim, Result, read_results, registry
from addnorm.claims.checks import ANSWERS, NOT_JUDGED
from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.report.charts.claims import plot_claim
from addnorm.report.html.page import (
    CollapsibleText,
    Facts,
    Headline,
    Note,
    Part,
    Section,
    Table,
    render_page,
    write_page,
)
from addnorm.report.theme import OUTCOME_SYMBOLS

PAGE_FILE, TABLE_FILE = "claims.html", "claims.md"
ANSWER_OUTCOMES = {
    "held": "trained",
    "not held": "diverged",
    "undecided": "stuck",
    "crashed": "crashed",
} | {NOT_JUDGED: "waiting"}
"""The outcome whose color and symbol each verdict uses."""
ANSWER_ORDER = {"not held": 0, "crashed": 1, "undecided": 2, "held": 3}
CORRECTED_SUFFIX = ", by a corrected rule"
ABOUT = (
    "Published statements about norms and residual connections. Each is tested by one small "
    "experiment and judged by a rule that was fixed before the run. Rules that were corrected "
    "after rows had been seen are marked. Not held means not held at the scale of the experiment."
)


@dataclass(frozen=True)
class VerdictChip:
    """A verdict as a colored label."""

    answer: str

    def __html__(self) -> str:
        outcome = ANSWER_OUTCOMES[self.answer]
        symbol = OUTCOME_SYMBOLS[outcome]
        return f'<span class="chip is-{outcome}">{symbol} {escape(self.answer)}</span>'


def write_claims_report(folder: str | Path) -> Path:
    """Write the page of a claims folder and the table as Markdown; return the path of the page."""
    folder = Path(folder)
    results = read_results(folder)
    if not results:
        raise UserError(f"no claims in {folder}; use the output folder of `addnorm claims run`")
    write_page(folder / TABLE_FILE, render_claims_markdown(results))
    return write_page(folder / PAGE_FILE, render_claims_page(results))


def render_claims_page(claim_results: Mapping[str, Result]) -> str:
    """Return the page as HTML; claims that did not hold come first."""
    claim_results = _sort_results(claim_results)
    counts = Counter(result.answer for result in claim_results.values())
    missing = [name for name in registry if name not in claim_results]
    warnings = [f"Not run yet: {', '.join(missing)}."] if missing else []
    return render_page(
        "Published claims, tested",
        about=ABOUT,
        key_numbers={"claims": str(len(claim_results))}
        | {answer: str(counts[answer]) for answer in (*ANSWERS, "crashed") if counts[answer]},
        warnings=warnings,
        sections=[
            Section("Verdicts", [_summary(claim_results), Note(RULE)]),
            *(_section(registry.member(name)(), result) for name, result in claim_results.items()),
        ],
    )


def render_claims_markdown(claim_results: Mapping[str, Result]) -> str:
    """Return the verdicts as a Markdown table; claims that did not hold come first."""
    lines = [
        "# Published claims, tested",
        "",
        ABOUT,
        "",
        RULE,
        "",
        "| claim | verdict | statement | source | measured |",
        "|---|---|---|---|---|",
    ]
    for name, result in _sort_results(claim_results).items():
        claim, card = registry.member(name)(), registry.card(name)
        checks = "<br>".join(map(_format_check, _sort_checks(result))) or result.why
        answer = f"{result.answer}{CORRECTED_SUFFIX if claim.corrected else ''}"
        cells = (f"`{name}`", answer, card.summary, claim.source, checks)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _format_check(check: Check) -> str:
    if check.answer == NOT_JUDGED:
        return f"{check.what}: {check.format()}"
    return f"{check.what}: {check.format()}, expected {check.expected_range}: {check.answer}"


def _sort_checks(result: Result) -> list[Check]:
    """Return the checks of the claim itself, followed by those of its premises."""
    checks = result.verdict.checks if result.verdict else ()
    return sorted(checks, key=lambda check: check.premise)


def _sort_results(claim_results: Mapping[str, Result]) -> dict[str, Result]:
    return dict(sorted(claim_results.items(), key=lambda item: ANSWER_ORDER[item[1].answer]))


def _summary(claim_results: Mapping[str, Result]) -> Table:
    rows: list[list[object]] = []
    for number, (name, result) in enumerate(claim_results.items(), start=2):
        card = registry.card(name)
        link = Markup('<a href="#s{}">{}</a>').format(number, card.title)
        source = registry.member(name)().source
        rows.append([link, VerdictChip(result.answer), card.summary, source])
    return Table("", ("claim", "verdict", "statement", "source"), rows, wide=True, stacked=True)


def _section(claim: Claim, result: Result) -> Section:
    card = registry.card(result.claim)
    chart = plot_claim(claim.chart, claim.chart_rows(result.rows), _capitalize(claim.chart.y))
    departures = [Note(f"Departure from the paper: {text}") for text in card.departures]
    return Section(
        card.title,
        [
            Headline([card.summary], _verdict_reason(result)),
            Table("", ("verdict", "rule"), [[VerdictChip(result.answer), _rule(claim)]], wide=True),
            chart,
            *_numbers(result),
            Note(f"Experiment: {claim.experiment}"),
            *departures,
            Note(f"Known before the run: {claim.pilot}"),
            Facts("Source", _source_facts(claim, card)),
            Facts("Reproduce", _reproduce_facts(claim, result)),
            CollapsibleText("All settings", _settings(claim, result)),
        ],
        about=card.formula,
    )


def _numbers(result: Result) -> list[Part]:
    if result.verdict is None:
        return [Note(f"The claim crashed: {result.why}")]
    head = ("measured", "mean ± 95 % interval", "seeds", "expected", "verdict")
    rows = [_check_row(check) for check in _sort_checks(result)]
    return [Table("Measurements", head, rows, stacked=True)]


def _rule(claim: Claim) -> str:
    note = " This rule was corrected after rows had been seen." if claim.corrected else ""
    return claim.rule + note


def _source_facts(claim: Claim, card: Card) -> dict[str, str]:
    author = {"attributed to": claim.attributed_to} if claim.attributed_to else {}
    return author | {"paper": card.paper, "location": claim.paper_location}


def _verdict_reason(result: Result) -> list[str]:
    return [] if result.verdict is None else [result.verdict.why]


def _check_row(check: Check) -> list[object]:
    seeds = str(check.found.count) if check.found else "0"
    return [check.what, check.format(), seeds, check.expected_range, VerdictChip(check.answer)]


def _reproduce_facts(claim: Claim, result: Result) -> dict[str, str]:
    facts = {
        "command": result.command,
        "budget": f"{result.budget}: {claim.cost(result.budget)}",
        "duration": f"{result.seconds:,.0f} s",
    }
    return facts | {name: str(value) for name, value in result.made.items()}


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _settings(claim: Claim, result: Result) -> str:
    import yaml

    if not claim.is_current(result.digest, result.budget):
        return "The settings of this claim have changed since it was run. Run it again."
    return str(yaml.safe_dump(claim.settings(result.budget), sort_keys=False, allow_unicode=True))
