"""`addnorm draw`: block diagrams of wirings and presets."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def draw(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME", help="Wirings, such as b2t or 'mix_ln(0.5)', or presets, such as gpt2"
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Output file ending in .svg or .png")
    ] = Path("blocks.svg"),
    theme: Annotated[str, typer.Option("--theme", help="Color theme: light or dark")] = "light",
    decoder: Annotated[
        bool, typer.Option("--decoder", help="Draw layers with cross-attention")
    ] = False,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth",
            min=1,
            help="Number of layers; equal ones are drawn once. Default: 6, or the preset's own",
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Option inside the sub-layers of wirings, such as "
            "gate=element, qk_norm=rms_head or canon=AC",
        ),
    ] = None,
    unroll: Annotated[
        int,
        typer.Option("--unroll", min=0, help="Draw each layer of a stack of this many layers"),
    ] = 0,
) -> None:
    """Draw block diagrams of wirings and presets, side by side."""
    from addnorm.core.key_values import parse_key_values
    from addnorm.report.diagram.draw import check_output_file, save
    from addnorm.report.diagram.draw import draw as draw_svg

    check_output_file(out)
    pairs = parse_key_values(options or [])
    svg = draw_svg(names, decoder=decoder, depth=depth, unroll=unroll, theme=theme, options=pairs)
    save(svg, out)
    print(f"addnorm: drew {', '.join(names)} into {out}", file=sys.stderr)
