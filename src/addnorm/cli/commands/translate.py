"""`addnorm translate`: lines in one language to lines in another."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from addnorm.cli.options import Attention, Chunk, Device, Json, Scores


def translate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run for translation.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="What to translate; standard input if left out."),
    ] = None,
    beam: Annotated[int, typer.Option("--beam", help="Hypotheses a sentence; 1 is greedy.")] = 5,
    nbest: Annotated[
        int | None,
        typer.Option("--nbest", help="Write so many lines for each: number, score, text by tabs."),
    ] = None,
    length_penalty: Annotated[
        str,
        typer.Option(
            "--length-penalty",
            metavar="ALPHA",
            help="Divide scores by ((5 + n) / 6) ** ALPHA for n tokens; or 'mean'; 0 for none.",
        ),
    ] = "0.6",
    prefix: Annotated[
        Path | None,
        typer.Option("--prefix", metavar="FILE", help="Beginnings of the answers, one a line."),
    ] = None,
    max_new: Annotated[int, typer.Option("--max-new", help="Tokens of an answer at most.")] = 256,
    batch_tokens: Annotated[
        int, typer.Option("--batch-tokens", help="Tokens in a batch, hypotheses counted.")
    ] = 8192,
    chunk: Chunk = None,
    scores: Scores = False,
    json: Json = False,
    attention: Attention = None,
    device: Device = "auto",
) -> None:
    """Translate lines: one out for each in, in the same order."""
    from addnorm.cli import line_io as cli
    from addnorm.decode.inference import InputWarnings
    from addnorm.decode.inference import translate as answer
    from addnorm.decode.options import DecodingOptions

    options = DecodingOptions(
        beam=beam,
        nbest=1 if nbest is None else nbest,
        length_penalty=parse_length_penalty(length_penalty),
        max_new=max_new,
        batch_tokens=batch_tokens,
    )
    texts, notes = cli.InputLines(files or ()), InputWarnings()
    begins = None if prefix is None else cli.InputLines([prefix])
    if begins is not None:
        cli.check_prefixes(texts, begins)
    trained = cli.open_run(run, device)
    form = "json" if json else "nbest" if nbest else "scores" if scores else "text"
    size = cli.resolve_chunk(chunk, files or ())
    answers = cli.pair_with_lines(
        texts,
        lambda asked: answer(trained, asked, options, prefixes=begins, chunk=size, notes=notes),
    )
    write = partial(cli.write_answers, form=form)
    try:
        cli.run_lines(trained, answers, write, description="translating", attention=attention)
    finally:
        cli.print_warnings(notes, texts, *([] if begins is None else [begins]))


def parse_length_penalty(text: str) -> float | Literal["mean"]:
    """The option as a number, or the word `mean`."""
    from addnorm.core.errors import UserError

    if text == "mean":
        return "mean"
    try:
        return float(text)
    except ValueError:
        raise UserError(
            f"--length-penalty is a number from 0 or 'mean', got {text!r}; 0.6 is usual"
        ) from None
