"""The page of claims: what was said by whom, what was measured, and the verdict."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from addnorm.claims import RULE, Check, Claim, Result, read_results, registry
from addnorm.claims.checks import ANSWERS, NOT_JUDGED
from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.report.charts.claims import claim_chart
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
"""An answer looks like an outcome: a light ground with a tick, a dark one with a cross."""
ANSWER_ORDER = {"not held": 0, "crashed": 1, "undecided": 2, "held": 3}
CORRECTED_SUFFIX = ", by a corrected rule"
ABOUT = (
    "Statements of the literature about norms and residual connections, each measured anew by one "
    "small experiment and judged by a rule that was written down before. Where a rule was "
    "corrected by somebody who had seen rows, that is said. Not held means: not here, at this "
    "scale."
)


@dataclass(frozen=True)
class Chip:
    """An answer, where a page shows it."""

    answer: str

    def __html__(self) -> str:
        """Its sign and its word."""
        look = ANSWER_OUTCOMES[self.answer]
        return f'<span class="chip is-{look}">{OUTCOME_SYMBOLS[look]} {escape(self.answer)}</span>'


def write_claims_report(folder: str | Path) -> Path:
    """Write the page of a folder of claims, and beside it the table as Markdown."""
    folder = Path(folder)
    found = read_results(folder)
    if not found:
        raise UserError(
            f"no claims at {folder}; wanted the -o folder of `addnorm claims run` or "
            "`addnorm claims all`"
        )
    write_page(folder / TABLE_FILE, render_claims_markdown(found))
    return write_page(folder / PAGE_FILE, render_claims_page(found))


def render_claims_page(claim_results: Mapping[str, Result]) -> str:
    """The page as text; claims that are not held come first."""
    claim_results = _sort_results(claim_results)
    counts = Counter(result.answer for result in claim_results.values())
    missing = [name for name in registry if name not in claim_results]
    warnings = [f"Not run yet: {', '.join(missing)}."] if missing else []
    return render_page(
        "Published claims, measured again",
        about=ABOUT,
        figures={"claims": str(len(claim_results))}
        | {answer: str(counts[answer]) for answer in (*ANSWERS, "crashed") if counts[answer]},
        warnings=warnings,
        sections=[
            Section("All verdicts", [_summary(claim_results), Note(RULE)]),
            *(_section(registry.member(name)(), result) for name, result in claim_results.items()),
        ],
    )


def render_claims_markdown(claim_results: Mapping[str, Result]) -> str:
    """The verdicts as a table, those that are not held first, for readers without a browser."""
    lines = [
        "# Published claims, measured again",
        "",
        ABOUT,
        "",
        RULE,
        "",
        "| claim | verdict | statement | source | what was measured |",
        "|---|---|---|---|---|",
    ]
    for name, result in _sort_results(claim_results).items():
        claim, card = registry.member(name)(), registry.card(name)
        told = "<br>".join(map(_format_check, _sort_checks(result))) or result.why
        answer = f"{result.answer}{CORRECTED_SUFFIX if claim.corrected else ''}"
        cells = (f"`{name}`", answer, card.summary, claim.source, told)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _format_check(check: Check) -> str:
    """A check in one line."""
    if check.answer == NOT_JUDGED:
        return f"{check.what}: {check.format()}"
    return f"{check.what}: {check.format()}, wanted {check.expected_range}: {check.answer}"


def _sort_checks(result: Result) -> list[Check]:
    """The claim's own checks first, its premises behind them."""
    checks = result.verdict.checks if result.verdict else ()
    return sorted(checks, key=lambda check: check.premise)


def _sort_results(claim_results: Mapping[str, Result]) -> dict[str, Result]:
    """Those that are not held first."""
    return dict(sorted(claim_results.items(), key=lambda item: ANSWER_ORDER[item[1].answer]))


def _summary(claim_results: Mapping[str, Result]) -> Table:
    rows: list[list[object]] = []
    for number, (name, result) in enumerate(claim_results.items(), start=2):
        card = registry.card(name)
        link = Markup('<a href="#s{}">{}</a>').format(number, card.title)
        source = registry.member(name)().source
        rows.append([link, Chip(result.answer), card.summary, source])
    return Table("", ("claim", "verdict", "statement", "source"), rows, wide=True, stacked=True)


def _section(claim: Claim, result: Result) -> Section:
    card = registry.card(result.claim)
    chart = claim_chart(claim.chart, claim.chart_rows(result.rows), _capitalize(claim.chart.y))
    departures = [Note(f"Other than in the paper: {text}") for text in card.departures]
    return Section(
        card.title,
        [
            Headline([card.summary], _verdict_reason(result)),
            Table("", ("verdict", "rule"), [[Chip(result.answer), _rule(claim)]], wide=True),
            chart,
            *_numbers(result),
            Note(f"The experiment: {claim.experiment}"),
            *departures,
            Note(f"Looked at beforehand: {claim.pilot}"),
            Facts("Who said it", _source_facts(claim, card)),
            Facts("How to run it again", _reproduce_facts(claim, result)),
            CollapsibleText("Every setting", _settings(claim, result)),
        ],
        about=card.formula,
    )


def _numbers(result: Result) -> list[Part]:
    if result.verdict is None:
        return [Note(f"It crashed: {result.why}")]
    head = ("measured", "mean ± 95 % interval", "seeds", "wanted", "answer")
    return [
        Table(
            "The numbers", head, [_check_row(check) for check in _sort_checks(result)], stacked=True
        )
    ]


def _rule(claim: Claim) -> str:
    note = (
        " The rule is a corrected one: whoever wrote it had seen rows." if claim.corrected else ""
    )
    return claim.rule + note


def _source_facts(claim: Claim, card: Card) -> dict[str, str]:
    said = {"who": claim.attributed_to} if claim.attributed_to else {}
    return said | {"paper": card.paper, "where": claim.paper_location}


def _verdict_reason(result: Result) -> list[str]:
    """What decides, in a sentence."""
    return [] if result.verdict is None else [result.verdict.why]


def _check_row(check: Check) -> list[object]:
    seeds = str(check.found.count) if check.found else "0"
    return [check.what, check.format(), seeds, check.expected_range, Chip(check.answer)]


def _reproduce_facts(claim: Claim, result: Result) -> dict[str, str]:
    told = {
        "command": result.command,
        "budget": f"{result.budget}: {claim.cost(result.budget)}",
        "took": f"{result.seconds:,.0f} s",
    }
    return told | {name: str(value) for name, value in result.made.items()}


def _capitalize(text: str) -> str:
    """Words as a title."""
    return text[:1].upper() + text[1:]


def _settings(claim: Claim, result: Result) -> str:
    import yaml

    if not claim.is_current(result.digest, result.budget):
        return "The settings of this claim were changed since it was run; run it again."
    return str(yaml.safe_dump(claim.settings(result.budget), sort_keys=False, allow_unicode=True))
