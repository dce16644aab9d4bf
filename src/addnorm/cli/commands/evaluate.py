"""`addnorm evaluate`: how good a run is on held-out data."""

import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from addnorm.cli.options import Device


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    split: Annotated[str, typer.Option("--split", help="train, valid or test.")] = "test",
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Another corpus than that of the run."),
    ] = None,
    beam: Annotated[
        int | None, typer.Option("--beam", help="Hypotheses a sentence (translate); 5.")
    ] = None,
    length_penalty: Annotated[
        str | None,
        typer.Option(
            "--length-penalty", metavar="ALPHA", help="As in `addnorm translate` (translate); 0.6."
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option("--batch-tokens", help="Tokens in a batch when decoding (translate); 8192."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as one JSON object.")] = False,
    device: Device = "auto",
) -> None:
    """Measure how good a run is on held-out data.

    BLEU and chrF of translations, perplexity and bits per character of a language model, accuracy,
    F1 and calibration of a classifier.
    """
    from addnorm.cli.commands.translate import parse_length_penalty
    from addnorm.cli.line_io import open_run, progress_bar
    from addnorm.cli.output import make_console, write_json, write_page
    from addnorm.decode.evaluate import evaluate as scores_of
    from addnorm.decode.inference import DEFAULT_TRANSLATE_OPTIONS
    from addnorm.decode.options import DecodingOptions

    options = None
    if (beam, length_penalty, batch_tokens) != (None, None, None):
        alpha = (
            DEFAULT_TRANSLATE_OPTIONS.length_penalty
            if length_penalty is None
            else parse_length_penalty(length_penalty)
        )
        options = DecodingOptions(
            beam=DEFAULT_TRANSLATE_OPTIONS.beam if beam is None else beam,
            length_penalty=alpha,
            batch_tokens=DEFAULT_TRANSLATE_OPTIONS.batch_tokens
            if batch_tokens is None
            else batch_tokens,
        )
    trained = open_run(run, device)
    with progress_bar("evaluating", shares_terminal=False) as tick:
        found = scores_of(trained, split, data=data, options=options, on_progress=tick)
    if json:
        write_json(_replace_nonfinite(found))
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in _flatten(found):
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    write_page(make_console(), table)
    sys.stdout.flush()


def _flatten(metrics: dict[str, Any]) -> list[tuple[str, Any]]:
    """One row a number: those of a label get its name."""
    rows: list[tuple[str, Any]] = []
    for name, value in metrics.items():
        inside = value.items() if isinstance(value, dict) else ()
        rows += [(f"{name} {word}", number) for word, number in inside]
        rows += [] if isinstance(value, dict) else [(name, value)]
    return rows


def _replace_nonfinite(metrics: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for infinity and NaN: they become text, as in rows."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }
