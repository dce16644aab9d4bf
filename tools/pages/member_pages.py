"""Pages of registry members: wirings, norms, presets, schedules, optimizers and positions."""

from functools import cache
from pathlib import Path

from addnorm.claims import registry as claims
from addnorm.claims.result import Result, read_results
from addnorm.cli.registries import get_registry
from addnorm.core.cards import Card
from addnorm.models.presets import PRESETS
from addnorm.report.diagram.blocks import build_block_diagram
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.text_art import render_text
from addnorm.train.schedules.base import recommended_schedule
from tools.pages.markdown import markdown_table

CLAIMS = Path(__file__).parents[2] / "docs" / "claims"
CLAIMS_PAGE = "../../claims/claims.md"
"""The page of claims, seen from the page of a member."""


def wiring_page(card: Card) -> str:
    diagram = render_text(compute_layout(build_block_diagram(card.name, depth=6)))
    parts = [*member_parts(card), "## One layer", f"```text\n{diagram.rstrip()}\n```"]
    parts += ["## Training", f"Recommended schedule: `{recommended_schedule(card.name)}`."]
    presets = [
        row.name
        for row in map(PRESETS.__getitem__, PRESETS)
        if card.name in config_wirings(row.config)
    ]
    if presets:
        parts.append(f"Presets: {', '.join(f'`{each}`' for each in presets)}.")
    parts += claim_parts(card.name)
    parts += ["## Use", f"```sh\naddnorm compare --wiring {card.name},pre_ln -o out\n```"]
    return "\n\n".join(parts)


def norm_page(card: Card) -> str:
    parts = member_parts(card)
    presets = [
        row.name
        for row in map(PRESETS.__getitem__, PRESETS)
        if get_member_name(row.config.norm) == card.name
    ]
    if presets:
        parts.append(f"Presets: {', '.join(f'`{each}`' for each in presets)}.")
    parts += claim_parts(card.name)
    parts += [
        "## Use",
        f"```sh\naddnorm compare --wiring pre_ln --norm {card.name},layer -o out\n```",
    ]
    return "\n\n".join(parts)


def member_parts(card: Card, level: int = 1) -> list[str]:
    """Return the paragraphs that every member has: formula, symbols, options, paper, departures."""
    section = "#" * (level + 1)
    parts = [f"{'#' * level} {card.title}", f"`{card.name}`: {card.summary}"]
    parts.append(f"```text\n{card.formula}\n```")
    if card.symbols:
        rows = [(f"`{symbol}`", text) for symbol, text in card.symbols]
        parts.append(markdown_table(("symbol", "shape and start value"), rows))
    if card.options:
        rows = [
            (
                f"`{name}`",
                f"`{option.default}`",
                ", ".join(f"`{choice}`" for choice in option.choices) or "",
            )
            for name, option in card.options.items()
        ]
        parts += [f"{section} Options", markdown_table(("option", "default", "choices"), rows)]
    if card.needs:
        parts.append(f"Needs: {', '.join(card.needs)}.")
    link = f"[arXiv {card.arxiv}](https://arxiv.org/abs/{card.arxiv})" if card.arxiv else ""
    paper = card.paper.replace(f"arXiv {card.arxiv}", link) if link else card.paper
    parts += [f"{section} Paper", f"{paper}."]
    if card.undefined:
        parts.append(f"Left open by the paper: {card.undefined}")
    if card.departures:
        parts += [f"{section} Departures from the paper"]
        parts.append("\n".join(f"- {text}" for text in card.departures))
    if card.reduces_to:
        parts += [f"{section} Reductions", "Equal at initialization on equal sub-layers; tested:"]
        parts.append("\n".join(f"- `{one}` = `{other}`" for one, other in card.reduces_to))
    return parts


def claim_parts(name: str) -> list[str]:
    """Return the claims about a wiring or norm, each with its verdict and what was found."""
    results = read_results_once()
    lines = []
    for card in claims.cards():
        claim = claims.make(card.name)
        if name in claim.about:
            result = results.get(card.name)
            if result is None or result.verdict is None:
                lines.append(f"- [{card.title}]({CLAIMS_PAGE}) (not run): {card.summary}")
            else:
                link = f"[{card.title}]({CLAIMS_PAGE}#{card.name})"
                found = claim.summarize(result.verdict)
                lines.append(f"- {link} ({result.verdict.answer}): {found}")
    text = "\n".join(lines) or f"None yet; [all claims]({CLAIMS_PAGE})."
    return ["## Claims about it", text]


@cache
def read_results_once() -> dict[str, Result]:
    return read_results(CLAIMS)


def get_member_name(call: str) -> str:
    """Return the name in a call string, without its options."""
    return call.partition("(")[0]


def config_wirings(config) -> set[str]:
    return {get_member_name(call) for call in (config.wiring, config.encoder_wiring) if call}


def preset_page() -> str:
    rows = [
        (f"`{card.name}`", card.title, f"`{card.formula}`", card.paper)
        for card in get_registry("presets").cards()
    ]
    intro = 'Released models as configurations: `addnorm.build("gpt2", depth=4)` changes one field.'
    return "\n\n".join(
        ["# Presets", intro, markdown_table(("name", "model", "arrangement", "paper"), rows)]
    )


def family_page(family: str, title: str, example: str) -> str:
    parts = [f"# {title}", f"Chosen by name in a recipe, for example `{example}`."]
    for card in get_registry(family).cards():
        parts += member_parts(card, level=2)
    return "\n\n".join(parts)


def position_page() -> str:
    parts = ["# Position encodings and query-key norms"]
    for family, title in (("positions", "Position encodings"), ("qk_norms", "Query-key norms")):
        parts.append(f"## {title}")
        for card in get_registry(family).cards():
            parts += member_parts(card, level=3)
    return "\n\n".join(parts)
