"""Drawings of wirings in the site: SVG for light and dark pages instead of text."""

import re

from addnorm.cli.registries import get_registry
from addnorm.report.diagram.blocks import build_block_diagram
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.svg import render_svg

TEXT_DRAWING = re.compile(r"(## One layer\n\n)```text\n.*?\n```", flags=re.DOTALL)


def add_drawings(pages: dict[str, str]) -> dict[str, bytes]:
    """Replace the text drawings in the pages of wirings; return the pictures by their path."""
    pictures: dict[str, bytes] = {}
    for card in get_registry("wirings").cards():
        page = f"catalogue/wirings/{card.name}.md"
        layout = compute_layout(build_block_diagram(card.name, depth=6))
        links = []
        for theme in ("light", "dark"):
            file = f"{card.name}-{theme}.svg"
            pictures[f"catalogue/wirings/{file}"] = render_svg([layout], theme=theme).encode()
            links.append(f"![One layer of {card.title}]({file}){{.only-{theme}}}")
        picture = "\n".join(links)
        pages[page] = TEXT_DRAWING.sub(lambda found: found[1] + picture, pages[page])  # noqa: B023
    return pictures
