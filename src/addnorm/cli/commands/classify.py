"""`addnorm classify`: predict the label of each line."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from addnorm.cli.options import Attention, ChunkLines, Device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from addnorm.tasks import LabelPrediction


def classify(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run trained for classify")
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Files to classify; default: standard input"),
    ] = None,
    batch_tokens: Annotated[int, typer.Option("--batch-tokens", help="Tokens per batch")] = 8192,
    chunk_lines: ChunkLines = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Print a tab and the probability after each label")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, with all probabilities")
    ] = False,
    attention: Attention = None,
    device: Device = "auto",
) -> None:
    """Predict the label of each line of the input."""
    from addnorm.cli import line_io as cli
    from addnorm.tasks import InputWarnings, classify_texts

    lines, warnings = cli.InputLines(files or ()), InputWarnings()
    trained = cli.open_run(run, device)
    chunk = cli.resolve_chunk(chunk_lines, files or ())
    outputs = cli.pair_with_lines(
        lines,
        lambda texts: classify_texts(
            trained, texts, batch_tokens=batch_tokens, chunk=chunk, warnings=warnings
        ),
    )
    form = "json" if json else "scores" if scores else "text"
    write = partial(_write, labels=trained.labels, form=form)
    try:
        cli.run_lines(trained, outputs, write, description="classifying", attention=attention)
    finally:
        cli.print_warnings(warnings, lines)


def _write(
    number: int, line: str, prediction: "LabelPrediction", *, labels: "Sequence[str]", form: str
) -> None:
    from addnorm.cli.line_io import write_line, write_record

    if form == "json":
        # An empty line has no probabilities.
        probabilities = dict(zip(labels, prediction.probabilities, strict=False))
        write_record(
            {
                "line": number,
                "input": line,
                "label": prediction.label,
                "probability": prediction.probability,
                "probabilities": probabilities,
            }
        )
    elif prediction.label is None:
        write_line("")
    elif form == "scores":
        write_line(prediction.label, f"{prediction.probability:.4f}")
    else:
        write_line(prediction.label)
