"""`addnorm draw`: block diagrams of wirings, from the recorded graphs of real blocks."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def draw(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME", help="Wirings, such as b2t or 'mix_ln(0.5)', and presets, such as gpt2."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="A file ending in .svg or .png.")
    ] = Path("blocks.svg"),
    theme: Annotated[str, typer.Option("--theme", help="light or dark.")] = "light",
    decoder: Annotated[
        bool, typer.Option("--decoder", help="Layers with cross-attention to an encoder.")
    ] = False,
    depth: Annotated[
        int, typer.Option("--depth", min=1, help="Layers of the stack; equal ones are drawn once.")
    ] = 6,
    layers: Annotated[
        int,
        typer.Option("--layers", min=0, help="Draw all layers of a stack of this many instead."),
    ] = 0,
) -> None:
    """Draw wirings side by side: what real blocks were seen doing."""
    from addnorm.report.diagram.draw import check_output_file, save
    from addnorm.report.diagram.draw import draw as picture

    check_output_file(out)
    save(picture(names, decoder=decoder, depth=depth, layers=layers, theme=theme), out)
    print(f"addnorm: drew {', '.join(names)} into {out}", file=sys.stderr)
