"""`addnorm translate`: translate lines of text."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from addnorm.cli.options import Attention, Average, ChunkLines, Device, Json, Scores


def translate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run trained for translate")
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Files to translate; default: standard input"),
    ] = None,
    beam: Annotated[int, typer.Option("--beam", help="Hypotheses per sentence; 1 is greedy")] = 5,
    nbest: Annotated[
        int | None,
        typer.Option(
            "--nbest",
            help="Print the N best of each line, as line number, score and text, tab-separated",
        ),
    ] = None,
    length_penalty: Annotated[
        str,
        typer.Option(
            "--length-penalty",
            metavar="ALPHA",
            help="Divide scores by ((5 + n) / 6) ** ALPHA for n tokens; 'mean' divides by n",
        ),
    ] = "0.6",
    prefix: Annotated[
        Path | None,
        typer.Option("--prefix", metavar="FILE", help="File of forced beginnings, one per line"),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", help="Upper bound of the tokens of a translation")
    ] = 256,
    batch_tokens: Annotated[
        int, typer.Option("--batch-tokens", help="Tokens per batch, all hypotheses included")
    ] = 8192,
    average: Average = None,
    chunk_lines: ChunkLines = None,
    scores: Scores = False,
    json: Json = False,
    attention: Attention = None,
    device: Device = "auto",
) -> None:
    """Translate each line of the input."""
    from addnorm.cli import line_io as cli
    from addnorm.decode.options import DecodingOptions
    from addnorm.tasks import InputWarnings, translate_texts

    options = DecodingOptions(
        beam=beam,
        nbest=1 if nbest is None else nbest,
        length_penalty=parse_length_penalty(length_penalty),
        max_new=max_new_tokens,
        batch_tokens=batch_tokens,
    )
    lines, warnings = cli.InputLines(files or ()), InputWarnings()
    prefixes = None if prefix is None else cli.InputLines([prefix])
    if prefixes is not None:
        cli.check_prefixes(lines, prefixes)
    trained = cli.open_run(run, device, average=average)
    form = "json" if json else "nbest" if nbest else "scores" if scores else "text"
    chunk = cli.resolve_chunk(chunk_lines, files or ())
    outputs = cli.pair_with_lines(
        lines,
        lambda texts: translate_texts(
            trained, texts, options, prefixes=prefixes, chunk=chunk, warnings=warnings
        ),
    )
    write = partial(cli.write_outputs, form=form)
    try:
        cli.run_lines(trained, outputs, write, description="translating", attention=attention)
    finally:
        cli.print_warnings(warnings, lines, *([] if prefixes is None else [prefixes]))


def parse_length_penalty(text: str) -> float | Literal["mean"]:
    """Return the value of --length-penalty: a number, or `mean`."""
    from addnorm.core.errors import UserError

    if text == "mean":
        return "mean"
    try:
        return float(text)
    except ValueError:
        raise UserError(
            f"--length-penalty: expected a number from 0 or 'mean', got {text!r}; try 0.6"
        ) from None
