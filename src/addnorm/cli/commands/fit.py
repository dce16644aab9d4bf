"""`addnorm fit`: fit an estimator to a table."""

from pathlib import Path
from typing import Annotated

import typer

from addnorm.cli.table_options import (
    ColumnTypes,
    Drop,
    Ids,
    Keys,
    Seed,
    TableFile,
    Target,
    Task,
    TestSize,
    open_table,
    scores_table,
)


def fit(
    table: TableFile,
    keys: Keys = None,
    target: Target = "",
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="RUN", help="Output folder of the run")
    ] = Path("fit"),
    task: Task = "auto",
    column_types: ColumnTypes = None,
    drop: Drop = None,
    ids: Ids = None,
    test_size: TestSize = 0.2,
    seed: Seed = 0,
    in_parts: Annotated[
        bool,
        typer.Option(
            "--in-parts",
            help="Read a Parquet or Arrow table in parts, with little memory; automatic for tables "
            "that do not fit into memory",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the run in the output folder")
    ] = False,
) -> None:
    """Fit a Transformer to a table and score it on held-out rows.

    The HTML report compares it with gradient boosting.
    """
    from rich.console import Console

    from addnorm.tabular.fit_run import check_run_folder, fit_run
    from addnorm.tabular.runs.fit_run_parts import fit_run_parts
    from addnorm.tabular.streaming.table_parts import is_too_large

    check_run_folder(out, force=force)
    console = Console(stderr=True, highlight=False, markup=False)
    in_parts = in_parts or is_too_large(table)
    frame, config = open_table(
        console,
        table,
        keys=keys,
        target=target,
        task=task,
        column_types=column_types,
        drop=drop,
        ids=ids,
        test_size=test_size,
        seed=seed,
        in_parts=in_parts,
    )
    if in_parts:
        result = fit_run_parts(config, out, verbose=True)
    else:
        result = fit_run(frame, config, out, verbose=True)
    from addnorm.report.table_page import write_fit_report

    page = write_fit_report(out, result)
    console.print(scores_table(result))
    if result.note:
        console.print(f"addnorm: {result.note}", soft_wrap=True)
    console.print(f"addnorm: report: {page}", soft_wrap=True)
    console.print(f"addnorm: predict new rows with: addnorm predict {out} NEW.csv", soft_wrap=True)
