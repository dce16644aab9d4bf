"""Pages of registry members: wirings, norms, presets, schedules, optimizers and positions."""

from functools import cache
from pathlib import Path

from addnorm.claims import registry as claims
from addnorm.claims.result import Result, read_results
from addnorm.cli.member_facts import describe_values
from addnorm.cli.registries import get_registry
from addnorm.core.cards import Card
from addnorm.models.presets import PRESETS
from addnorm.report.diagram.blocks import build_block_diagram
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.text_art import render_text
from addnorm.train.schedules.base import recommended_schedule
from tools.pages.families import families_with
from tools.pages.markdown import markdown_table
from tools.pages.measurements import measured_parts

CLAIMS = Path(__file__).parents[2] / "docs" / "claims"
CLAIMS_PAGE = "../../claims/claims.md"
"""The page of claims, seen from the page of a member."""


def wiring_page(card: Card) -> str:
    diagram = render_text(compute_layout(build_block_diagram(card.name, depth=6)))
    parts = [*member_parts(card), "## One layer", f"```text\n{diagram.rstrip()}\n```"]
    parts += fold_parts(card)
    parts += ["## Training", f"Recommended schedule: `{recommended_schedule(card.name)}`."]
    parts += measured_parts("wirings", card.name)
    users = [name for name in PRESETS if card.name in config_wirings(PRESETS[name].config)]
    parts += usage_parts(users, families_with("wiring", card.name))
    parts += claim_parts(card.name)
    parts += ["## Use", f"```sh\naddnorm compare --wiring {card.name},pre_ln -o out\n```"]
    return "\n\n".join(parts)


def norm_page(card: Card) -> str:
    parts = [*member_parts(card), *measured_parts("norms", card.name)]
    users = [name for name in PRESETS if get_member_name(PRESETS[name].config.norm) == card.name]
    parts += usage_parts(users, families_with("norm", card.name))
    parts += claim_parts(card.name)
    parts += [
        "## Use",
        f"```sh\naddnorm compare --wiring pre_ln --norm {card.name},layer -o out\n```",
    ]
    return "\n\n".join(parts)


def fold_parts(card: Card) -> list[str]:
    """Return what a wiring folds into: a plain wiring with other weights and equal outputs."""
    if not card.folds_to:
        return []
    return [
        "## Folding",
        f"A trained model folds into [`{card.folds_to}`]({get_member_name(card.folds_to)}.md): the "
        "plain wiring with changed weights computes the same outputs, so that other libraries can "
        "run it. See [export](../../guides/export.md#fold).",
    ]


def usage_parts(presets: list[str], families: list[str]) -> list[str]:
    """Return which presets and which families of transformers use a member."""
    if not (presets or families):
        return []
    parts = ["## Used by"]
    if presets:
        links = ", ".join(f"[`{name}`](../presets.md)" for name in presets)
        parts.append(f"Presets: {links}.")
    if families:
        names = ", ".join(f"`{name}`" for name in families)
        parts.append(f"Families of `transformers`, by their default config: {names}.")
    return parts


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
                ", ".join(f"`{choice}`" for choice in option.choices) or describe_values(option),
            )
            for name, option in card.options.items()
        ]
        parts += [f"{section} Options", markdown_table(("option", "default", "values"), rows)]
    if card.needs:
        parts.append(f"Needs: {', '.join(card.needs)}.")
    parts += [f"{section} Paper", f"{link_paper(card)}."]
    if card.undefined:
        parts.append(f"Left open by the paper: {card.undefined}")
    if card.departures:
        parts += [f"{section} Departures from the paper"]
        parts.append("\n".join(f"- {text}" for text in card.departures))
    if card.reduces_to:
        parts += [f"{section} Laws", "Equal outputs on equal sub-layers at initialization, tested:"]
        parts.append("\n".join(f"- `{one}` = `{other}`" for one, other in card.reduces_to))
    return parts


def link_paper(card: Card) -> str:
    """Return the paper of a card; its arXiv number is a link."""
    if not card.arxiv:
        return card.paper
    link = f"[arXiv {card.arxiv}](https://arxiv.org/abs/{card.arxiv})"
    return card.paper.replace(f"arXiv {card.arxiv}", link)


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
