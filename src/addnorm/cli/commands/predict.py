"""`addnorm predict`: predictions for the rows of a table."""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from addnorm.cli.options import SafeCsv


def predict(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder written by addnorm fit, or an export of it"),
    ],
    table: Annotated[
        Path,
        typer.Argument(metavar="TABLE", help="CSV, TSV, Parquet or Arrow file; .gz and .xz too"),
    ],
    scores: Annotated[
        bool, typer.Option("--scores", help="Add a column with the probability of each class")
    ] = False,
    safe_csv: SafeCsv = False,
) -> None:
    """Print a prediction for each row of a table, as CSV.

    The output column has the name of the target; with quantiles there is one for each. Columns
    given as --id to `addnorm fit` are copied in front. Input columns are matched by name; a missing
    column is an error, and additional columns are ignored with a warning.

    Labels come from the training table and are printed unchanged. Use --safe-csv before opening
    the output of an untrusted table in a spreadsheet, which would execute labels such as =1+1.
    """
    import numpy as np

    from addnorm.core.errors import UserError
    from addnorm.data.csv_cells import escape_formula
    from addnorm.exporters.report import is_export
    from addnorm.tabular.columns.table_files import read_table_chunks
    from addnorm.tabular.fit_run import align_columns, open_run, prediction_names

    if is_export(run):
        from addnorm.exporters.exported_run import open_exported_estimator

        settings, estimator = open_exported_estimator(run)
        target, column_types = settings["target"], settings["types"]
        ids, dropped = settings.get("ids", []), settings.get("drop", [])
    else:
        config, estimator = open_run(run)
        target, column_types = config.target, config.types
        ids, dropped = config.ids, config.drop
    classes = getattr(estimator, "classes_", None)
    if scores and classes is None:
        raise UserError(f"--scores: expected a classifier, got the regression {run}")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    clean = escape_formula if safe_csv else lambda cell: cell
    names = [f"p({each})" for each in classes] if scores and classes is not None else []
    # The target is ignored if it is present, so any value must parse.
    types = column_types | {target: "string"}
    for number, frame in enumerate(read_table_chunks(table, types)):
        X, unused = align_columns(frame, estimator, target)
        present = [name for name in ids if name in frame.columns]
        if number == 0:
            if ignored := [name for name in unused if name not in (*ids, *dropped)]:
                text = f"ignoring columns that were not in the fit: {', '.join(ignored)}"
                print(f"addnorm: {text}", file=sys.stderr)
            if absent := [name for name in ids if name not in present]:
                print(f"addnorm: no column {', '.join(map(repr, absent))} to copy", file=sys.stderr)
            header = [*present, *prediction_names(target, estimator), *names]
            writer.writerow(map(clean, header))
        keys = frame[present].itertuples(index=False)
        if scores and classes is not None:
            probabilities = estimator.predict_proba(X)
            labels = classes[probabilities.argmax(1)]
            results: Iterable[Sequence[Any]] = (
                [label, *(f"{each:.6g}" for each in row)]
                for label, row in zip(labels, probabilities, strict=True)
            )
        else:
            results = (np.atleast_1d(each).tolist() for each in estimator.predict(X))
        for key, result in zip(keys, results, strict=True):
            writer.writerow(map(clean, [*key, *result]))
