"""`addnorm predict`: answers for the rows of a table."""

import csv
import sys
from pathlib import Path
from typing import Annotated

import typer


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that addnorm fit made.")],
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV, TSV, Parquet or Arrow, also .gz or .xz.")
    ],
    scores: Annotated[
        bool, typer.Option("--scores", help="Also the probability of every class.")
    ] = False,
) -> None:
    """Predict a table: a line of CSV for each row.

    The prediction stands under the name of the target. Columns are matched by name: missing ones
    are refused, others are left out with a note.
    """
    from addnorm.cli.commands.fit import warn
    from addnorm.core.errors import UserError
    from addnorm.tabular.columns.table_files import read_table_chunks
    from addnorm.tabular.fit_run import align_columns, open_run

    config, estimator = open_run(run)
    classes = getattr(estimator, "classes_", None)
    if scores and classes is None:
        raise UserError(f"{run} predicts a number, which has no probabilities; leave --scores out")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    names = [f"p({each})" for each in classes] if scores and classes is not None else []
    # A target that stands there is not read, whatever it holds.
    types = config.types | {config.target: "string"}
    for number, frame in enumerate(read_table_chunks(table, types)):
        X, strange = align_columns(frame, estimator, config.target)
        if number == 0:
            if strange:
                warn(f"columns that were not seen at fit time are left out: {', '.join(strange)}")
            writer.writerow([config.target, *names])
        if not scores or classes is None:
            writer.writerows([each] for each in estimator.predict(X))
            continue
        said = estimator.predict_proba(X)
        for row in said:
            writer.writerow([classes[row.argmax()], *(f"{each:.6g}" for each in row)])
