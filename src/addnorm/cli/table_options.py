"""Options and output that `addnorm fit` and `addnorm tune` share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from addnorm.tabular.fit_run import FitConfig, FitResult

TableFile = Annotated[
    Path,
    typer.Argument(metavar="TABLE", help="CSV, TSV, Parquet or Arrow file; .gz and .xz too"),
]
Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Parameters of the estimator, such as wiring=b2t depth=3"
    ),
]
Target = Annotated[str, typer.Option("--target", "-t", metavar="COLUMN", help="Column to predict")]
Task = Annotated[
    str,
    typer.Option("--task", help="classify, regress or auto; auto infers it from the target"),
]
ColumnTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--column-type",
        metavar="COLUMN=TYPE",
        help="Type of a column instead of the inferred one: numeric, boolean, categorical, "
        "string or datetime; repeatable",
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="COLUMN", help="Column to leave out; repeatable"),
]
Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--id",
        metavar="COLUMN",
        help="Column that identifies rows: not learned from, copied to predictions; repeatable",
    ),
]
TestSize = Annotated[
    float,
    typer.Option("--test-size", help="Fraction of the rows to test on; 0 skips the test"),
]
Seed = Annotated[
    int, typer.Option("--seed", help="Seed of the train/test split and of the training")
]


def open_table(
    console: "Console",
    table: Path,
    *,
    keys: list[str] | None,
    target: str,
    task: str,
    column_types: list[str] | None,
    drop: list[str] | None,
    ids: list[str] | None,
    test_size: float,
    seed: int,
    in_parts: bool = False,
) -> "tuple[Any, FitConfig]":
    """Read a table, print its columns and what is suspicious about them; return it and its config.

    Args:
        console: where to print
        table: path of the table
        keys: KEY=VALUE parameters of the estimator
        target: name of the target column
        task: "classify", "regress" or "auto"
        column_types: COLUMN=TYPE options
        drop: columns to leave out
        ids: columns that identify rows
        test_size: fraction of test rows
        seed: seed of the split and the fit
        in_parts: read and describe the first rows only
    """
    import numpy as np

    from addnorm.core.errors import UserError
    from addnorm.tabular.columns.reader import KINDS, read_columns
    from addnorm.tabular.columns.suspicious_columns import describe_suspicious_columns
    from addnorm.tabular.columns.table_files import read_table
    from addnorm.tabular.fit_run import FitConfig, drop_columns
    from addnorm.tabular.runs.fit_run_parts import read_first_part
    from addnorm.tabular.task_setup import infer_task, split_target

    if not target:
        raise UserError("--target: expected the name of the column to predict, got none")
    if task not in ("auto", "classify", "regress"):
        raise UserError(f"--task: expected classify, regress or auto, got {task!r}")
    params = parse_params(keys or [], column_types or [], KINDS)
    # Read categories as strings: parsed as numbers, codes such as 007 would lose their zeros.
    kinds = params.get("column_types", {})
    texts = {name: "string" for name, kind in kinds.items() if kind in ("categorical", "string")}
    texts |= {name: "string" for name in ids or ()}
    if in_parts:
        frame, rows = read_first_part(table)
        csv_types, extent = dict[str, str](), f"{rows:,} rows, read in parts"
        console.print(f"addnorm: the first {len(frame):,} rows:")
    else:
        frame, csv_types = read_table(table, texts)
        extent = f"{len(frame):,} rows"
    X, y = split_target(frame, target)
    X = drop_columns(X, (*(drop or ()), *(ids or ())))
    resolved_task = infer_task(y) if task == "auto" else task
    columns = read_columns(X, kinds)
    console.print(columns_table(columns))
    for sentence in describe_suspicious_columns(
        columns, np.asarray(y), classify=resolved_task == "classify"
    ):
        console.print(f"addnorm: {sentence}", soft_wrap=True)
    console.print(
        f"addnorm: {extent}, {X.shape[1]} columns; {resolved_task} {target!r}"
        f"{' (override with --task)' if task == 'auto' else ''}",
        soft_wrap=True,
    )
    config = FitConfig(
        table=str(table),
        target=target,
        task=resolved_task,
        holdout=test_size,
        seed=seed,
        params=params,
        types=csv_types,
        drop=tuple(drop or ()),
        ids=tuple(ids or ()),
    )
    return frame, config


def parse_params(
    keys: list[str], column_types: list[str], kinds: tuple[str, ...]
) -> dict[str, Any]:
    """Parse KEY=VALUE arguments and COLUMN=TYPE options into parameters of the estimator."""
    from addnorm.core.errors import UserError, unknown_name_message
    from addnorm.tabular.fit_run import parse_param

    params: dict[str, Any] = {}
    for key in keys:
        name, equals, value = key.partition("=")
        if not equals or not name:
            raise UserError(f"expected KEY=VALUE such as depth=3, got {key!r}")
        params[name] = parse_param(value)
    if column_types:
        params.setdefault("column_types", {})
    types = params.get("column_types", {})
    if not isinstance(types, dict):
        raise UserError(
            f"column_types: expected a mapping, got {types!r}; use --column-type COLUMN=TYPE"
        )
    for each in column_types:
        name, _, kind = each.rpartition("=")
        if not name:
            raise UserError(
                f"--column-type: expected COLUMN=TYPE such as zip=categorical, got {each!r}"
            )
        if kind not in kinds:
            raise UserError(unknown_name_message("column type", kind, kinds))
        types[name] = kind
    return params


def columns_table(columns: list[Any]) -> "Table":
    """Return the types of columns as a table for the terminal."""
    import numpy as np
    from rich.table import Table

    from addnorm.tabular.columns.reader import format_cell

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name in ("column", "type", "missing", "distinct", "example"):
        table.add_column(name, justify="right" if name in ("missing", "distinct") else "left")
    for column in columns:
        is_float = column.values.dtype == np.float64
        present = ~np.isnan(column.values) if is_float else column.values != np.array(None)
        values = column.values[present]
        first = int(np.flatnonzero(present)[0]) if present.any() else 0
        missing = f"{1 - present.mean():.1%}" if not present.all() else "-"
        example = format_cell(column, first)
        shortened = example if len(example) <= 30 else f"{example[:27]}..."
        distinct = len(np.unique(values)) if is_float else len(set(values))
        table.add_row(column.name, column.kind, missing, f"{distinct:,}", shortened)
    return table


def scores_table(result: "FitResult") -> "Table":
    """Return the test scores of a fit as a table for the terminal."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    metrics = list(next(iter(result.scores.values()), {}))
    table.add_column(f"{result.tested:,} test rows" if metrics else "no test rows")
    for metric in metrics:
        table.add_column(metric, justify="right")
    for model, scores in result.scores.items():
        table.add_row(model, *(f"{scores.get(each, float('nan')):.4g}" for each in metrics))
    return table
