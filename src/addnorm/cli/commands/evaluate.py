"""`addnorm evaluate`: compute the metrics of a run on held-out data."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from addnorm.cli.options import Average, Device


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run")],
    split: Annotated[str, typer.Option("--split", help="Split: train, valid or test")] = "test",
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Corpus folder; default: that of the run"),
    ] = None,
    beam: Annotated[
        int | None, typer.Option("--beam", help="Hypotheses per sentence (translate); default 5")
    ] = None,
    length_penalty: Annotated[
        str | None,
        typer.Option(
            "--length-penalty",
            metavar="ALPHA",
            help="Length penalty as in `addnorm translate` (translate); default 0.6",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            "--batch-tokens", help="Tokens per batch when decoding (translate); default 8192"
        ),
    ] = None,
    average: Average = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object")] = False,
    device: Device = "auto",
) -> None:
    """Compute the metrics of a run on held-out data.

    BLEU and chrF of translations, perplexity and bits per character of a language model, accuracy,
    F1 and calibration of a classifier, perplexity and accuracy of masked tokens.
    """
    from addnorm.cli.commands.translate import parse_length_penalty
    from addnorm.cli.line_io import open_run, progress_bar
    from addnorm.cli.output import make_console, write_json, write_page
    from addnorm.decode.options import DecodingOptions
    from addnorm.tasks import evaluation, get_task

    changes: dict[str, Any] = {"beam": beam, "batch_tokens": batch_tokens}
    if length_penalty is not None:
        changes["length_penalty"] = parse_length_penalty(length_penalty)
    changes = {name: value for name, value in changes.items() if value is not None}
    trained = open_run(run, device, average=average)
    options = None
    if changes:
        options = replace(get_task(trained.task).evaluation_options or DecodingOptions(), **changes)
    with progress_bar("evaluating", shares_terminal=False) as tick:
        metrics = evaluation.evaluate(trained, split, data=data, options=options, on_progress=tick)
    if json:
        write_json(_replace_nonfinite(metrics))
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in _flatten(metrics):
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    write_page(make_console(), table)
    sys.stdout.flush()


def _flatten(metrics: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return a (name, value) row per number; values of a dict get its key in the name."""
    rows: list[tuple[str, Any]] = []
    for name, value in metrics.items():
        if isinstance(value, dict):
            rows += [(f"{name} {key}", number) for key, number in value.items()]
        else:
            rows.append((name, value))
    return rows


def _replace_nonfinite(metrics: dict[str, Any]) -> dict[str, Any]:
    """Replace infinity and NaN, which JSON does not have, by text, as in rows."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }
