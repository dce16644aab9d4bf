"""The page and the table of claims: one sentence for each, and the evidence folded away."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from addnorm.claims import RULE, Check, Claim, Result, read_results, registry
from addnorm.claims.checks import ANSWERS, NOT_JUDGED
from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.report.charts.claims import plot_claim
from addnorm.report.html.page import (
    Collapsible,
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
CORRECTED = "by a corrected rule"
CORRECTED_BEFORE_RUN = "by a rule corrected before this run"
ABOUT = (
    "Published statements about norms and residual connections. Each is tested by one small "
    "experiment and judged by a rule that was fixed before the run. A rule that was corrected "
    "after rows had been seen is marked, and so is one that was corrected after an earlier round "
    "and before the run that it judges. Not held means not held at the scale of the experiment."
)
PROGRESS_NOTE = (
    "Progress is the part of the baseline's loss that an arm removes, relative to the reference of "
    "its experiment: 0 is a model that ignores its input, 1 the reference, usually Pre-LN. From "
    "0.25 on an arm has trained; differences below 0.05 count as none."
)


@dataclass(frozen=True)
class VerdictChip:
    """A verdict as a colored label, with a note below it."""

    answer: str
    note: str = ""

    def __html__(self) -> str:
        outcome = ANSWER_OUTCOMES[self.answer]
        symbol = OUTCOME_SYMBOLS[outcome]
        note = f"<br><small>{escape(self.note)}</small>" if self.note else ""
        return f'<span class="chip is-{outcome}">{symbol} {escape(self.answer)}</span>{note}'


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
    missing = _missing(claim_results)
    warnings = [f"Not run yet: {', '.join(missing)}."] if missing else []
    return render_page(
        "Published claims, tested",
        about=ABOUT,
        key_numbers={"claims": str(len(claim_results))}
        | {answer: str(counts[answer]) for answer in (*ANSWERS, "crashed") if counts[answer]},
        warnings=warnings,
        sections=[
            Section("Verdicts", [_summary(claim_results), Note(PROGRESS_NOTE), Note(RULE)]),
            *(_section(registry.member(name)(), result) for name, result in claim_results.items()),
        ],
    )


def render_claims_markdown(claim_results: Mapping[str, Result]) -> str:
    """Return a table with one sentence for each claim, followed by what its verdict rests on."""
    claim_results = _sort_results(claim_results)
    lines = ["# Published claims, tested", "", ABOUT, "", PROGRESS_NOTE, ""]
    lines += ["| claim | verdict | statement | what was found | source |", "|---|---|---|---|---|"]
    for name, result in claim_results.items():
        claim, card = registry.member(name)(), registry.card(name)
        link = f"[`{name}`](#{name})"
        cells = (
            link,
            format_answer(claim, result),
            card.summary,
            _sentence(claim, result),
            claim.source,
        )
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    if missing := _missing(claim_results):
        command = f"addnorm claims run {' '.join(missing)} -o claims"
        lines += ["", f"Not run yet by their current settings: `{command}`."]
    lines += ["", "## How a verdict is reached", "", RULE, "", "## Checks and rules"]
    for name, result in claim_results.items():
        lines += _markdown_section(registry.member(name)(), result)
    return "\n".join(lines) + "\n"


def _markdown_section(claim: Claim, result: Result) -> Iterator[str]:
    card = registry.card(result.claim)
    yield from ("", f"### {result.claim}", "", f"{card.title}: {card.summary}")
    yield from ("", f"**{_capitalize(format_answer(claim, result))}.** {_sentence(claim, result)}")
    if result.answer == "not held" and claim.discussion:
        yield from ("", f"What was different here: {claim.discussion}")
    checks = _sort_checks(result)
    yield from ("", f"<details><summary>{len(checks)} checks, rule and command</summary>", "")
    yield from (f"- {_format_check(check)}" for check in checks)
    yield from ("", f"Rule: {_rule(claim)}", "", f"Known before the run: {claim.pilot}")
    yield from ("", f"Command: `{result.command}` ({result.seconds:,.0f} s)", "", "</details>")


def _missing(claim_results: Mapping[str, Result]) -> list[str]:
    return [name for name in registry if name not in claim_results]


def _correction(claim: Claim) -> str:
    """Return the note of a claim whose rule was corrected; empty for others."""
    if not claim.corrected:
        return ""
    return CORRECTED_BEFORE_RUN if claim.has_new_rows else CORRECTED


def format_answer(claim: Claim, result: Result) -> str:
    """Return the verdict, marked if the rule was corrected."""
    return ", ".join(filter(None, (result.answer, _correction(claim))))


def _sentence(claim: Claim, result: Result) -> str:
    """Return what was found, what it was measured on and how far it reaches."""
    return claim.summarize(result.verdict) if result.verdict else f"It crashed: {result.why}"


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
        claim, card = registry.member(name)(), registry.card(name)
        link = Markup('<a href="#s{}">{}</a>').format(number, card.title)
        chip = VerdictChip(result.answer, _correction(claim))
        rows.append([link, chip, card.summary, _sentence(claim, result), claim.source])
    head = ("claim", "verdict", "statement", "what was found", "source")
    return Table("", head, rows, wide=True, stacked=True)


def _section(claim: Claim, result: Result) -> Section:
    card = registry.card(result.claim)
    chart = plot_claim(claim.chart, claim.chart_rows(result.rows), _capitalize(claim.chart.y))
    chip = VerdictChip(result.answer, _correction(claim))
    return Section(
        card.title,
        [
            Headline([card.summary]),
            Table("", ("verdict", "what was found"), [[chip, _sentence(claim, result)]], wide=True),
            *_discussion(claim, result),
            chart,
            Collapsible("Rule, checks and premises", _evidence(claim, result)),
            Collapsible("Experiment and source", _background(claim, card, result)),
            CollapsibleText("All settings", _settings(claim, result)),
        ],
        about=card.formula,
    )


def _discussion(claim: Claim, result: Result) -> list[Part]:
    if result.answer != "not held" or not claim.discussion:
        return []
    return [Note(f"What was different here: {claim.discussion}")]


def _evidence(claim: Claim, result: Result) -> list[Part]:
    """Return the rule, what decides and every check."""
    rule = Note(f"Rule: {_rule(claim)}")
    if result.verdict is None:
        return [rule, Note(f"The claim crashed: {result.why}")]
    head = ("measured", "mean ± 95 % interval", "seeds", "expected", "verdict")
    rows = [_check_row(check) for check in _sort_checks(result)]
    return [rule, Note(result.verdict.why), Table("Measurements", head, rows, stacked=True)]


def _background(claim: Claim, card: Card, result: Result) -> list[Part]:
    return [
        Note(f"Experiment: {claim.experiment}"),
        *(Note(f"Departure from the paper: {text}") for text in card.departures),
        Note(f"Known before the run: {claim.pilot}"),
        Facts("Source", _source_facts(claim, card)),
        Facts("Reproduce", _reproduce_facts(claim, result)),
    ]


def _rule(claim: Claim) -> str:
    if not claim.corrected:
        return claim.rule
    note = (
        "This rule was corrected after an earlier round and before the run that it judges."
        if claim.has_new_rows
        else "This rule was corrected after rows had been seen."
    )
    return f"{claim.rule} {note}"


def _source_facts(claim: Claim, card: Card) -> dict[str, str]:
    author = {"attributed to": claim.attributed_to} if claim.attributed_to else {}
    return author | {"paper": card.paper, "location": claim.paper_location}


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
