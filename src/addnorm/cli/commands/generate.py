"""`addnorm generate`: continue prompts with a language model."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from addnorm.cli.options import Attention, ChunkLines, Device, Json, Scores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from addnorm.tasks import GeneratedText


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run trained for lm")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Files of prompts, one per line; default: standard input"
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", help="One prompt, instead of lines; '' starts a document"),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="Sampling temperature; default 1")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Sample from the K most likely tokens")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p", help="Sample from the most likely tokens with this total probability"
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            "--min-p", help="Sample from tokens with this fraction of the highest probability"
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", help="Upper bound of the new tokens")
    ] = 100,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the sampling")] = 0,
    beam: Annotated[
        int | None,
        typer.Option("--beam", help="Beam search instead of sampling; 1 is greedy"),
    ] = None,
    num_samples: Annotated[
        int | None,
        typer.Option(
            "--num-samples",
            help="Texts per prompt, printed as line number, score and text, tab-separated",
        ),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option("--batch-tokens", help="Tokens per batch, prompts included")
    ] = 8192,
    chunk_lines: ChunkLines = None,
    scores: Scores = False,
    json: Json = False,
    attention: Attention = None,
    device: Device = "auto",
) -> None:
    """Continue a prompt, or each line of the input.

    Tokens are sampled, unless --beam is set.

    Line breaks inside a text are printed as \\n, except in the text of --prompt.
    """
    from addnorm.cli import line_io as cli
    from addnorm.core.errors import UserError
    from addnorm.decode.options import DecodingOptions
    from addnorm.tasks import InputWarnings, generate_texts

    if prompt is not None and files:
        raise UserError("expected --prompt or files of prompts, got both; leave one out")
    settings = {"temperature": temperature, "top-k": top_k, "top-p": top_p, "min-p": min_p}
    sampling = [f"--{name}" for name, value in settings.items() if value is not None]
    if beam is not None and sampling:
        raise UserError(f"expected --beam or {sampling[0]}, got both; leave one out")
    options = DecodingOptions(
        beam=1 if beam is None else beam,
        nbest=1 if num_samples is None else num_samples,
        temperature=1.0 if beam is None and temperature is None else temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        max_new=max_new_tokens,
        batch_tokens=batch_tokens,
    )
    lines, warnings = cli.InputLines(files or ()), InputWarnings()
    trained = cli.open_run(run, device)
    form = "json" if json else "nbest" if num_samples else "scores" if scores else "text"
    chunk = cli.resolve_chunk(chunk_lines, files or ())

    def continue_prompts(prompts: "Iterator[str]") -> "Iterator[list[GeneratedText]]":
        return generate_texts(
            trained,
            prompts,
            options,
            allow_blank=prompt is not None,
            chunk=chunk,
            warnings=warnings,
        )

    outputs = cli.pair_with_lines(lines if prompt is None else [prompt], continue_prompts)
    write = _write_text if prompt is not None and form == "text" else None
    try:
        cli.run_lines(
            trained,
            outputs,
            write or partial(cli.write_outputs, form=form),
            description="generating",
            attention=attention,
        )
    finally:
        cli.print_warnings(warnings, lines)


def _write_text(number: int, line: str, outputs: "list[GeneratedText]") -> None:
    sys.stdout.write(outputs[0].text + "\n")
