"""`addnorm fill-mask`: predict the tokens at `<mask>` in lines of text."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from addnorm.cli.options import Attention, ChunkLines, Device, Json

if TYPE_CHECKING:
    from addnorm.tasks import FilledText


def fill_mask(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run trained for mlm")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Files of lines with <mask>; default: standard input"),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            help="Print the K best tokens of each mask, as line number, mask number, probability "
            "and token, tab-separated",
        ),
    ] = None,
    batch_tokens: Annotated[int, typer.Option("--batch-tokens", help="Tokens per batch")] = 8192,
    chunk_lines: ChunkLines = None,
    json: Json = False,
    attention: Attention = None,
    device: Device = "auto",
) -> None:
    """Replace each <mask> of the input by its most likely token."""
    from addnorm.cli import line_io as cli
    from addnorm.tasks import InputWarnings
    from addnorm.tasks import fill_mask as fill
    from addnorm.tasks.mlm import DEFAULT_TOP_K

    lines, warnings = cli.InputLines(files or ()), InputWarnings()
    trained = cli.open_run(run, device)
    chunk = cli.resolve_chunk(chunk_lines, files or ())
    count = top_k if top_k is not None else DEFAULT_TOP_K if json else 1
    outputs = cli.pair_with_lines(
        lines,
        lambda texts: fill(
            trained, texts, top_k=count, batch_tokens=batch_tokens, chunk=chunk, warnings=warnings
        ),
    )
    form = "json" if json else "text" if top_k is None else "table"
    write = partial(_write, form=form)
    try:
        cli.run_lines(trained, outputs, write, description="filling", attention=attention)
    finally:
        cli.print_warnings(warnings, lines)


def _write(number: int, line: str, output: "FilledText", *, form: str) -> None:
    from addnorm.cli.line_io import write_line, write_record

    if form == "json":
        masks = [
            [{"token": fill.token, "probability": fill.probability} for fill in fills]
            for fills in output.fills
        ]
        write_record({"line": number, "input": line, "text": output.text, "masks": masks})
    elif form == "table":
        for mask, fills in enumerate(output.fills, start=1):
            for fill in fills:
                write_line(
                    number, mask, f"{fill.probability:.4f}", fill.token.strip() or fill.token
                )
    else:
        write_line(output.text)
