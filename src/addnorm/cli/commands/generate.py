"""`addnorm generate`: texts that go on where prompts end."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from addnorm.cli.options import Attention, Chunk, Device, Json, Scores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from addnorm.decode.inference import GeneratedText


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run for lm.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Prompts, one a line; else standard input."),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", help="One prompt, in place of lines; '' begins a document."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Above 1 bolder, below 1 safer; 1.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Draw from so many of the likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Draw from this share of the probability.")
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option("--min-p", help="Draw from tokens this likely, compared with the likeliest."),
    ] = None,
    max_new: Annotated[int, typer.Option("--max-new", help="New tokens at most.")] = 100,
    seed: Annotated[int, typer.Option("--seed", help="Another one gives other texts.")] = 0,
    beam: Annotated[
        int | None,
        typer.Option("--beam", help="Search instead of drawing; 1 takes the likeliest token."),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option("--n", help="Write so many lines for each: number, score, text by tabs."),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option("--batch-tokens", help="Tokens in a batch, prompts and new ones.")
    ] = 8192,
    chunk: Chunk = None,
    scores: Scores = False,
    json: Json = False,
    attention: Attention = None,
    device: Device = "auto",
) -> None:
    """Go on with a prompt, or with every line.

    Draws at random, unless there is a beam.

    Line breaks inside an answer are written as \\n, except in the one answer to --prompt.
    """
    from addnorm.cli import line_io as cli
    from addnorm.core.errors import UserError
    from addnorm.decode.inference import InputWarnings, generate_texts
    from addnorm.decode.options import DecodingOptions

    if prompt is not None and files:
        raise UserError("got --prompt and files of prompts; leave out one of them")
    settings = {"temperature": temperature, "top-k": top_k, "top-p": top_p, "min-p": min_p}
    draws = [f"--{name}" for name, value in settings.items() if value is not None]
    if beam is not None and draws:
        raise UserError(f"--beam searches and {draws[0]} draws at random; leave out one of them")
    options = DecodingOptions(
        beam=1 if beam is None else beam,
        nbest=1 if n is None else n,
        temperature=1.0 if beam is None and temperature is None else temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        max_new=max_new,
        batch_tokens=batch_tokens,
    )
    texts, notes = cli.InputLines(files or ()), InputWarnings()
    trained = cli.open_run(run, device)
    form = "json" if json else "nbest" if n else "scores" if scores else "text"
    size = cli.resolve_chunk(chunk, files or ())

    def answer(asked: "Iterator[str]") -> "Iterator[list[GeneratedText]]":
        return generate_texts(
            trained, asked, options, allow_blank=prompt is not None, chunk=size, notes=notes
        )

    answers = cli.pair_with_lines(texts if prompt is None else [prompt], answer)
    write = _write_text if prompt is not None and form == "text" else None
    try:
        cli.run_lines(
            trained,
            answers,
            write or partial(cli.write_answers, form=form),
            description="writing",
            attention=attention,
        )
    finally:
        cli.print_warnings(notes, texts)


def _write_text(number: int, line: str, answers: "list[GeneratedText]") -> None:
    sys.stdout.write(answers[0].text + "\n")
