"""Diagrams of wirings and presets side by side, and their SVG and PNG files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from addnorm.core.errors import UnknownNameError, UserError, unknown_name_message
from addnorm.models import Config, build
from addnorm.models.presets import PRESETS, Preset
from addnorm.report.diagram.blocks import BlockDiagram, build_block_diagram, name_norms
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.placeholders import OPTIONS
from addnorm.report.diagram.svg import render_svg
from addnorm.report.output import write_bytes
from addnorm.report.theme import THEMES
from addnorm.wirings.base import registry as wirings

FILE_SUFFIXES = (".svg", ".png")
DEFAULT_DEPTH = 6
PNG_SCALE = 2.0
"""Pixels of a PNG for each pixel of the SVG."""


def draw(
    names: Sequence[str],
    *,
    decoder: bool = False,
    depth: int | None = None,
    unroll: int = 0,
    theme: str = "light",
    options: Mapping[str, Any] | None = None,
) -> str:
    """Return block diagrams of wirings and presets, side by side, as SVG.

    Args:
        names: call strings of wirings, names of presets
        decoder: whether layers have cross-attention; presets have their own layers
        depth: number of layers; equal ones are drawn once. If None, 6 for wirings; presets have
            their own.
        unroll: if not 0, draw each layer of a stack of this depth instead
        theme: "light" or "dark"
        options: options inside the sub-layers of wirings, such as {"gate": "element"}; presets have
            their own

    Raises:
        UserError: if a name is unknown or an option out of range
    """
    if isinstance(names, str) or not names:
        raise UserError(
            f"names: expected a list of wirings, got {names!r}; try ['post_ln', 'pre_ln', 'b2t']"
        )
    if theme not in THEMES:
        raise UserError(unknown_name_message("theme", theme, THEMES))
    if unroll and depth is not None:
        raise UserError(
            f"depth: expected none with unroll={unroll}, which is the number of layers, got {depth}"
        )
    settings: dict[str, Any] = {"decoder": decoder, "depth": depth, "unroll": unroll}
    settings["options"] = options
    blocks = [each for name in names for each in build_blocks(name, **settings)]
    return render_svg([compute_layout(each) for each in blocks], theme=theme)


def build_blocks(
    name: str,
    *,
    decoder: bool = False,
    depth: int | None = None,
    unroll: int = 0,
    options: Mapping[str, Any] | None = None,
) -> list[BlockDiagram]:
    """Return the diagram of a wiring, or those of a preset's stacks; see `draw`."""
    if name in PRESETS:
        if decoder or options:
            what = "decoder: expected False" if decoder else "options: expected none"
            raise UserError(f"{what} for the preset {name}, which has its own layers; leave it out")
        return preset_blocks(PRESETS[name], depth=depth, unroll=unroll)
    if isinstance(name, str) and "(" not in name and name.strip() not in wirings:
        raise UnknownNameError(unknown_name_message("wiring or preset", name, [*wirings, *PRESETS]))
    depth = DEFAULT_DEPTH if depth is None else depth
    sizes: dict[str, Any] = {"decoder": decoder, "depth": depth, "unroll": unroll}
    return [build_block_diagram(name, **sizes, options=_check_options(name, options or {}))]


def _check_options(wiring: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options that a model with the wiring accepts; raise a `UserError` for any others."""
    for name in options:
        if name not in OPTIONS:
            raise UserError(unknown_name_message("option of a diagram", name, OPTIONS))
    if not options:
        return options
    key_heads = options.get("kv_heads")
    heads = 2 * key_heads if isinstance(key_heads, int) and key_heads > 0 else 2
    sizes: dict[str, Any] = {"vocab": 8, "dim": 8 * heads, "heads": heads, "depth": 2}
    build(Config(kind="lm", wiring=wiring, **sizes, **options), device="meta")
    return options


def preset_blocks(
    preset: Preset, *, depth: int | None = None, unroll: int = 0
) -> list[BlockDiagram]:
    """Return the diagrams of a preset's stacks with the titles of its norms.

    depth: number of layers; its own if None
    """
    config = preset.config
    given = depth
    stacks = {preset.title: (config.wiring, config.depth, config.norm, False)}
    if config.kind == "seq2seq":
        depth = config.encoder_depth or config.depth
        encoder = config.encoder_wiring or config.wiring, depth, config.encoder_norm or config.norm
        stacks = {
            f"{preset.title}, encoder": (*encoder, False),
            f"{preset.title}, decoder": (config.wiring, config.depth, config.norm, True),
        }
    blocks = []
    for title, (wiring, depth, norm, decoder) in stacks.items():
        sizes: dict[str, Any] = {"decoder": decoder, "depth": depth if given is None else given}
        options = {name: getattr(config, name) for name in OPTIONS}
        block = build_block_diagram(wiring, **sizes, unroll=unroll, options=options)
        details = [config.positions]
        if config.embed_norm != "none":
            details.append(f"{config.embed_norm} on the embedding")
        caption = (
            f"{block.formula}; {', '.join(details)}; {config.dim} features, {config.heads} heads"
        )
        blocks.append(replace(name_norms(block, norm), title=title, formula=caption))
    return blocks


def check_output_file(path: Path) -> None:
    """Raise a `UserError` if `path` cannot be written; call this before drawing."""
    if path.is_dir():
        raise UserError(f"{str(path)!r}: expected a file, got a folder; try {path / 'blocks.svg'}")
    if path.suffix.lower() not in FILE_SUFFIXES:
        raise UserError(
            f"{str(path)!r}: expected a file ending in {' or '.join(FILE_SUFFIXES)}; "
            f"try {path.stem or 'blocks'}.svg"
        )
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {str(path.parent)!r}; create it first")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"the folder {str(path.parent)!r} is not writable; choose another")


def save(svg_text: str, path: Path) -> None:
    """Write a diagram as SVG, or as PNG if the file name ends in .png; the write is atomic."""
    check_output_file(path)
    write_bytes(path, render_png(svg_text) if path.suffix.lower() == ".png" else svg_text.encode())


def render_png(svg_text: str) -> bytes:
    """Convert an SVG to PNG."""
    import vl_convert  # large, and needed only here

    return bytes(vl_convert.svg_to_png(svg_text, scale=PNG_SCALE))
