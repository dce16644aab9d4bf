"""`addnorm classify`: a label for every line."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from addnorm.cli.options import Attention, Chunk, Device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from addnorm.decode.inference import LabelPrediction


def classify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run for classify.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="What to classify; standard input if left out."),
    ] = None,
    batch_tokens: Annotated[int, typer.Option("--batch-tokens", help="Tokens in a batch.")] = 8192,
    chunk: Chunk = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="A tab and the probability behind each label.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, with all probabilities.")
    ] = False,
    attention: Attention = None,
    device: Device = "auto",
) -> None:
    """Label lines: one out for each in, in the same order."""
    from addnorm.cli import line_io as cli
    from addnorm.decode.inference import InputWarnings
    from addnorm.decode.inference import classify as answer

    texts, notes = cli.InputLines(files or ()), InputWarnings()
    trained = cli.open_run(run, device)
    size = cli.resolve_chunk(chunk, files or ())
    answers = cli.pair_with_lines(
        texts,
        lambda asked: answer(trained, asked, batch_tokens=batch_tokens, chunk=size, notes=notes),
    )
    form = "json" if json else "scores" if scores else "text"
    write = partial(_write, labels=trained.labels, form=form)
    try:
        cli.run_lines(trained, answers, write, description="labelling", attention=attention)
    finally:
        cli.print_warnings(notes, texts)


def _write(
    number: int, line: str, prediction: "LabelPrediction", *, labels: "Sequence[str]", form: str
) -> None:
    from addnorm.cli.line_io import write_line, write_record

    if form == "json":
        p = dict(zip(labels, prediction.probabilities, strict=False))  # none for an empty line
        told = {
            "label": prediction.label,
            "probability": prediction.probability,
            "probabilities": p,
        }
        write_record({"line": number, "input": line, **told})
    elif prediction.label is None:
        write_line("")
    elif form == "scores":
        write_line(prediction.label, f"{prediction.probability:.4f}")
    else:
        write_line(prediction.label)
