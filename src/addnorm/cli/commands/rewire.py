"""`addnorm rewire`: change the arrangement of a saved model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from addnorm.rewiring import RewireReport


def rewire(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="hf:FOLDER of a Hugging Face model, or folder of a model or run"
        ),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="New or empty folder to write")
    ],
    norm: Annotated[
        str | None, typer.Option("--norm", metavar="NORM", help="New norms, such as rms or dyt")
    ] = None,
    qk_norm: Annotated[
        str | None,
        typer.Option("--qk-norm", metavar="NORM", help="Norms of queries and keys, such as rms"),
    ] = None,
    wiring: Annotated[
        str | None,
        typer.Option("--wiring", metavar="WIRING", help="New wiring, such as layer_scale"),
    ] = None,
    depth: Annotated[
        int | None, typer.Option("--depth", min=1, help="Number of layers, at least as many")
    ] = None,
    gate: Annotated[
        str | None,
        typer.Option("--gate", metavar="KIND", help="Gate of attention heads: head or element"),
    ] = None,
    value_residual: Annotated[
        str | None,
        typer.Option(
            "--value-residual",
            metavar="KIND",
            help="Mixture of values with those of the first layer: scalar, token or half",
        ),
    ] = None,
    merge_norms: Annotated[
        bool, typer.Option("--merge-norms", help="Merge norms of the same input into one")
    ] = False,
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="FILE", help="Text for changes that are fitted"),
    ] = None,
    require: Annotated[
        str | None,
        typer.Option(
            "--require", metavar="GRADE", help="Refuse other than exact or equal_at_start changes"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON")] = False,
) -> None:
    """Change norms, wiring or depth of a saved model.

    The report says whether the result computes the same (exact), the same until it is trained
    further (equal_at_start), or something else that was fitted to the text (fitted).
    """
    from addnorm.rewiring.saved_models import rewire_folder

    report = rewire_folder(
        target,
        out,
        text=text,
        norm=norm,
        qk_norm=qk_norm,
        wiring=wiring,
        depth=depth,
        gate=gate,
        value_residual=value_residual,
        merge_norms=merge_norms,
        require=require,
    )
    if json:
        from addnorm.cli.output import write_json

        write_json(report.to_dict())
        return
    _print_report(report, out)


def _print_report(report: "RewireReport", out: Path) -> None:
    from rich.table import Table

    from addnorm.cli.output import make_console, write_page

    table = Table.grid(padding=(0, 2, 0, 0))
    for line in str(report).splitlines():
        name, _, value = line.partition(": ")
        table.add_row(name, value)
    table.add_row("written to", str(out))
    write_page(make_console(), table)
