"""Pages of presets: arrangement, drawing, fields and the model that was released."""

import re

from addnorm.models.config import Config
from addnorm.models.presets import PRESETS, Preset
from addnorm.report.diagram.blocks import build_block_diagram
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.svg import render_svg
from tools.pages.families import read_families
from tools.pages.markdown import markdown_table
from tools.pages.member_pages import config_wirings, get_member_name, link_paper


def preset_pages() -> dict[str, str]:
    """Return the page of each preset."""
    return {f"catalogue/presets/{name}.md": preset_page(PRESETS[name]) for name in PRESETS}


def preset_pictures() -> dict[str, bytes]:
    """Return the drawings of all presets for light and dark pages, by their path."""
    pictures = {}
    for name in PRESETS:
        config = PRESETS[name].config
        layout = compute_layout(build_block_diagram(config.wiring, depth=config.depth))
        for theme in ("light", "dark"):
            picture = render_svg([layout], theme=theme).encode()
            pictures[f"catalogue/presets/{name}-{theme}.svg"] = picture
    return pictures


def link_presets(pages: dict[str, str]) -> None:
    """Link to the pages of presets from their table, and from the wirings and norms they use."""
    table = pages["catalogue/presets.md"]
    pages["catalogue/presets.md"] = re.sub(
        r"^\| `([\w-]+)` \|", r"| [`\1`](presets/\1.md) |", table, flags=re.MULTILINE
    )
    for page, text in pages.items():
        if page.startswith(("catalogue/wirings/", "catalogue/norms/")):
            pages[page] = re.sub(
                r"\[`([\w-]+)`\]\(\.\./presets\.md\)", r"[`\1`](../presets/\1.md)", text
            )


def preset_page(preset: Preset) -> str:
    """Return the page of one preset."""
    config = preset.config
    wirings = ", ".join(member_link("wirings", name) for name in sorted(config_wirings(config)))
    norm = member_link("norms", get_member_name(config.norm))
    parts = [
        f"# {preset.title}",
        f"`{preset.name}`: {preset.card.formula}.",
        f"Wiring: {wirings}. Norm: {norm}. Parameters of the released model: "
        f"{preset.parameters:,}; the preset has as many.",
        "## One layer",
        "\n".join(
            f"![One layer of {preset.title}]({preset.name}-{theme}.svg){{.only-{theme}}}"
            for theme in ("light", "dark")
        ),
        "## Fields",
        "Fields of `addnorm.Config` that differ from their defaults. Every one can be changed in "
        "`addnorm.build`.",
        markdown_table(("field", "value", "default"), field_rows(config)),
        "## Paper",
        f"{link_paper(preset.card)}.",
        "## Use",
        f'```python\nmodel = addnorm.build("{preset.name}", depth=4, dim=128, heads=4)\n```',
    ]
    if preset.name in read_families():
        parts.append(
            f"`addnorm.from_hf` converts models of the family `{preset.name}` of `transformers` "
            "into this arrangement, with equal outputs; see "
            "[Hugging Face models](../../guides/hugging-face.md)."
        )
    return "\n\n".join(parts) + "\n"


def field_rows(config: Config) -> list[tuple[str, str, str]]:
    """Return name, value and default of every field that was set."""
    rows = []
    for name, value in config.model_dump(exclude_defaults=True).items():
        field = Config.model_fields[name]
        default = "" if field.is_required() else f"`{field.default}`"
        rows.append((f"`{name}`", f"`{value}`", default))
    return rows


def member_link(family: str, name: str) -> str:
    return f"[`{name}`](../{family}/{name}.md)"
