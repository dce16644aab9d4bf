"""Drawing wirings side by side, and writing the picture to a file."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from addnorm.core.errors import UnknownNameError, UserError, unknown_name_message
from addnorm.models.presets import PRESETS, Preset
from addnorm.norms.base import registry as norms
from addnorm.report.diagram.blocks import BlockDiagram, build_block_diagram
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.svg import THEMES, render_svg
from addnorm.wirings.base import registry as wirings

FILE_SUFFIXES = (".svg", ".png")
PNG_SCALE = 2.0
"""Pixels of a PNG for each unit of the drawing."""


def draw(
    names: Sequence[str],
    *,
    decoder: bool = False,
    depth: int = 6,
    layers: int = 0,
    theme: str = "light",
) -> str:
    """Block diagrams of wirings and presets, side by side, as SVG.

    names: call strings of wirings, names of presets. decoder: layers with cross-attention. depth:
    layers of the stacks that are built; equal ones are drawn once, and presets have their own.
    layers: draw every layer of a stack of this many instead. theme: light or dark.
    """
    if isinstance(names, str) or not names:
        raise UserError(
            f"a list of wirings is wanted, got {names!r}; try ['post_ln', 'pre_ln', 'b2t']"
        )
    if theme not in THEMES:
        raise UserError(unknown_name_message("theme", theme, THEMES))
    options = {"depth": depth, "layers": layers}
    blocks = [each for name in names for each in build_blocks(name, decoder=decoder, **options)]
    return render_svg([compute_layout(each) for each in blocks], theme=theme)


def build_blocks(
    name: str, *, decoder: bool = False, depth: int = 6, layers: int = 0
) -> list[BlockDiagram]:
    """The block of a wiring, or those of a preset."""
    if name in PRESETS:
        return preset_blocks(PRESETS[name], layers=layers)
    if isinstance(name, str) and "(" not in name and name.strip() not in wirings:
        raise UnknownNameError(unknown_name_message("wiring or preset", name, [*wirings, *PRESETS]))
    return [build_block_diagram(name, decoder=decoder, depth=depth, layers=layers)]


def preset_blocks(preset: Preset, *, layers: int = 0) -> list[BlockDiagram]:
    """The stacks of a preset at their real depth, their norms by name."""
    config = preset.config
    halves = {preset.title: (config.wiring, config.depth, config.norm, False)}
    if config.kind == "seq2seq":
        depth = config.encoder_depth or config.depth
        encoder = config.encoder_wiring or config.wiring, depth, config.encoder_norm or config.norm
        halves = {
            f"{preset.title}, encoder": (*encoder, False),
            f"{preset.title}, decoder": (config.wiring, config.depth, config.norm, True),
        }
    made = []
    for title, (wiring, depth, norm, decoder) in halves.items():
        plain = build_block_diagram(wiring, decoder=decoder, depth=depth, layers=layers)
        named = norms.card(norms.resolve(norm).name).title
        graph = {
            key: replace(node, label=named) if node.label == "Norm" else node
            for key, node in plain.graph.items()
        }
        more = [] if config.embed_norm == "none" else [f"{config.embed_norm} on the embedding"]
        more += [] if config.qk_norm == "none" else [f"{config.qk_norm} query-key norm"]
        told = ", ".join((config.positions, config.activation, *more))
        words = f"{plain.formula}; {told}; {config.dim} features, {config.heads} heads"
        made.append(replace(plain, title=title, formula=words, graph=graph))
    return made


def check_output_file(path: Path) -> None:
    """Refuse a file that cannot be written, before there is anything to write."""
    if path.is_dir():
        raise UserError(f"{str(path)!r} is a folder, wanted a file; try {path / 'blocks.svg'}")
    if path.suffix.lower() not in FILE_SUFFIXES:
        raise UserError(
            f"cannot draw into {str(path)!r}: wanted a file ending in {' or '.join(FILE_SUFFIXES)}; "
            f"try {path.stem or 'blocks'}.svg"
        )
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {str(path.parent)!r}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"the folder {str(path.parent)!r} cannot be written to; choose another")


def save(svg_text: str, path: Path) -> None:
    """Write an SVG, or the PNG of it if the name ends so; whole or not at all."""
    check_output_file(path)
    data = render_png(svg_text) if path.suffix.lower() == ".png" else svg_text.encode()
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as problem:
        raise UserError(f"cannot write {str(path)!r}: {problem.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp made it for its owner's eyes only
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def render_png(svg_text: str) -> bytes:
    """The picture as pixels."""
    import vl_convert  # a big library, wanted only here

    return bytes(vl_convert.svg_to_png(svg_text, scale=PNG_SCALE))
