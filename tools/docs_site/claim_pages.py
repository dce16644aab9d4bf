"""Pages of claims: statement, verdict, chart, checks, rule and command."""

import re
from functools import cache

from addnorm.claims import Claim, Result, registry
from addnorm.core.cards import Card
from addnorm.report.charts.claims import plot_claim
from addnorm.report.claims_page import format_answer
from addnorm.report.html.page import Chart
from tools.docs_site.rule_pages import as_markdown
from tools.pages.markdown import markdown_table
from tools.pages.member_pages import link_paper, read_results_once

DETAILS = re.compile(r"\n## Checks and rules\n.*", flags=re.DOTALL)


def claim_pages() -> dict[str, str]:
    """Return the page of each claim, also of those that were not run."""
    return {f"claims/{name}.md": claim_page(name) for name in registry}


def claim_page(name: str) -> str:
    """Return the page of one claim."""
    card, claim = registry.card(name), registry.member(name)()
    result = read_results_once().get(name)
    parts = [f"# {card.title}", f"**Claim.** {as_markdown(card.summary)}"]
    location = as_markdown(claim.paper_location).rstrip(".")
    parts.append(f"**Source.** {link_papers(card)}; {location}.")
    if result is None or result.verdict is None:
        parts.append("**Verdict.** Not run yet.")
    else:
        parts.append(
            f"**Verdict: {format_answer(claim, result)}.** {claim.summarize(result.verdict)}"
        )
        if result.answer == "not held" and claim.discussion:
            parts.append(f"**What was different here.** {as_markdown(claim.discussion)}")
        parts += [*chart_parts(claim, result), *check_parts(result)]
    parts += ["## Experiment", as_markdown(claim.experiment)]
    parts += [
        "## Rule",
        as_markdown(claim.rule),
        f"Known before the run: {as_markdown(claim.pilot)}",
    ]
    members = [link for link in map(member_link, claim.about) if link]
    if members:
        parts += ["## About", ", ".join(members)]
    parts += ["## Run it again", f"```sh\naddnorm claims run {name} -o claims\n```"]
    parts.append("[How a verdict is reached](claims.md#how-a-verdict-is-reached)")
    return "\n\n".join(parts) + "\n"


def link_papers(card: Card) -> str:
    """Return the sources of a claim; unlike members, some have several with arXiv numbers."""
    return re.sub(
        r"(?<!\[)arXiv (\d{4}\.\d{4,5})",
        r"[arXiv \1](https://arxiv.org/abs/\1)",
        link_paper(card),
    )


def chart_parts(claim: Claim, result: Result) -> list[str]:
    """Return the chart of the rows and its note; nothing if no row has a value to draw."""
    svg, note = render_claim_chart(claim, result)
    return ["## Measured", f'<div class="claim-chart">{svg}</div>', note] if svg else []


def render_claim_chart(claim: Claim, result: Result) -> tuple[str, str]:
    """Return the chart of the rows as inline SVG, colored by the style sheet, and its note."""
    chart = plot_claim(claim.chart, claim.chart_rows(result.rows), "What was measured")
    if not isinstance(chart, Chart):
        return "", ""
    return re.sub(r"\n\s*", "", str(chart.static_svg)), as_markdown(chart.note)


def check_parts(result: Result) -> list[str]:
    assert result.verdict is not None
    rows = [
        (
            as_markdown(check.what),
            check.format_short(),
            check.expected_range or "reported only",
            check.answer if check.has_range else "",
        )
        for check in result.verdict.checks
    ]
    return ["## Checks", markdown_table(("what", "found", "predicted", "answer"), rows)]


@cache
def member_families() -> dict[str, str]:
    from addnorm.cli.registries import get_registry

    return {name: family for family in ("norms", "wirings") for name in get_registry(family)}


def member_link(name: str) -> str:
    """Return a link to the page of a wiring or norm; empty for other names."""
    family = member_families().get(name)
    return f"[`{name}`](../catalogue/{family}/{name}.md)" if family else ""


def link_claims(pages: dict[str, str]) -> None:
    """Point links to sections of the table of claims to the pages of the claims."""
    names = "|".join(registry)
    for page, text in pages.items():
        text = re.sub(rf"claims/claims\.md#({names})\b", r"claims/\1.md", text)
        for card in registry.cards():  # claims that were not run have no section in the table
            text = text.replace(
                f"[{card.title}](../../claims/claims.md)",
                f"[{card.title}](../../claims/{card.name}.md)",
            )
        pages[page] = text
    table = DETAILS.sub("\n", pages["claims/claims.md"])
    table = re.sub(rf"\(#({names})\)", r"(\1.md)", table)
    waiting = [card for card in registry.cards() if f"({card.name}.md)" not in table]
    if waiting:
        links = ", ".join(f"[{card.title}]({card.name}.md)" for card in waiting)
        head, mark, rest = table.partition("\n## How a verdict is reached")
        table = f"{head}\nClaims without a result: {links}.\n{mark}{rest}"
    pages["claims/claims.md"] = table
