"""`addnorm export`: write a model for an inference engine, and prove that it computes the same."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from addnorm.exporters import ExportReport

MISMATCH = 1
"""Exit code if the exported model differs from the original."""


def export(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder of a run, of a saved model or of a fit"),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="TARGET", help="Target: hf, onnx, ctranslate2 or torch")
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="New or empty folder to write")
    ],
    quantize: Annotated[
        str | None,
        typer.Option(
            "--quantize", metavar="FORMAT", help="Number format of the weights, such as int8"
        ),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="CLASS", help="Class of model to write, such as llama; default: chosen"
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", help="Largest accepted difference of logits"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON")] = False,
) -> None:
    """Export a run for an inference engine, and compare the two.

    The files are opened again by the engine and compared on held-out inputs before they are kept.
    `addnorm translate`, `generate`, `classify`, `fill-mask`, `evaluate` and `predict` read the
    folder through that engine.

    Exit codes: 0 exported, 1 the exported model differs from the original, 2 refused.
    """
    import sys

    from addnorm.core.errors import ExportMismatchError
    from addnorm.exporters import export as export_model

    try:
        report = export_model(
            run, to=to, out=out, quantize=quantize, family=family, tolerance=tolerance
        )
    except ExportMismatchError as error:
        print(f"addnorm: {error}", file=sys.stderr)
        raise typer.Exit(MISMATCH) from None
    if json:
        import dataclasses

        from addnorm.cli.output import write_json

        write_json(dataclasses.asdict(report) | {"folder": str(report.folder)})
        return
    _print_report(report)


def _print_report(report: "ExportReport") -> None:
    from rich.table import Table

    from addnorm.cli.output import make_console, write_page

    proof, table = report.proof, Table.grid(padding=(0, 2, 0, 0))
    table.add_row("target", report.target)
    table.add_row("form", f"{report.arrangement} -> {report.form}")
    table.add_row("grade", report.grade)
    table.add_row(
        "largest difference",
        f"{proof.max_error:.2g} on {proof.inputs}, {proof.sequences} in all "
        f"(accepted: {proof.tolerance:.2g})",
    )
    for name, counts in (
        ("greedy outputs", proof.greedy),
        ("beam outputs", proof.beam),
        ("labels", proof.labels),
    ):
        if counts is not None:
            table.add_row(f"identical {name}", f"{counts[0]} of {counts[1]}")
    for name, (before, after) in proof.scores.items():
        table.add_row(name, f"{before:.4g} -> {after:.4g}")
    for note in report.notes:
        table.add_row("note", note)
    table.add_row("written to", str(report.folder))
    write_page(make_console(), table)
