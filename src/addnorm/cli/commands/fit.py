"""`addnorm fit`: an estimator from a table."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from addnorm.tabular.fit_run import FitResult


def fit(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV, TSV, Parquet or Arrow, also .gz or .xz.")
    ],
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Parameters of the estimator: wiring=b2t depth=3 ..."
        ),
    ] = None,
    target: Annotated[
        str, typer.Option("--target", "-t", metavar="COLUMN", help="What to predict.")
    ] = "",
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="RUN", help="The folder of the fit.")
    ] = Path("fit"),
    task: Annotated[
        str, typer.Option("--task", help="classify, regress, or auto: as the target looks.")
    ] = "auto",
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="COLUMN=TYPE",
            help="numeric, boolean, categorical, string or datetime, for a column that is not as "
            "it looks.",
        ),
    ] = None,
    holdout: Annotated[
        float,
        typer.Option("--holdout", help="Share of the rows that is only measured; 0 for none."),
    ] = 0.2,
    seed: Annotated[int, typer.Option("--seed", help="The same seed, the same bits.")] = 0,
) -> None:
    """Fit a Transformer to a table and measure it.

    Its page has gradient boosting beside it.
    """
    from rich.console import Console

    from addnorm.core.errors import UserError
    from addnorm.tabular.columns.reader import KINDS, read_columns
    from addnorm.tabular.columns.table_files import read_table
    from addnorm.tabular.fit_run import FitConfig, fit_run
    from addnorm.tabular.task_setup import infer_task, split_target

    if not target:
        raise UserError("which column is to be predicted? say --target COLUMN")
    if task not in ("auto", "classify", "regress"):
        raise UserError(f"--task is classify, regress or auto, got {task!r}")
    params = _parse_params(keys or [], types or [], KINDS)
    talk = Console(stderr=True, highlight=False, markup=False)
    # A name that looks like a number keeps its zeros.
    kinds = params.get("column_types", {})
    texts = {name: "string" for name, kind in kinds.items() if kind in ("categorical", "string")}
    frame, read_as = read_table(table, texts)
    X, y = split_target(frame, target)
    found = infer_task(y) if task == "auto" else task
    talk.print(_types(read_columns(X, kinds)))
    talk.print(
        f"addnorm: {len(frame):,} rows, {X.shape[1]} columns; {found} {target!r}"
        f"{' (--task says otherwise)' if task == 'auto' else ''}",
        soft_wrap=True,
    )
    config = FitConfig(
        table=str(table),
        target=target,
        task=found,
        holdout=holdout,
        seed=seed,
        params=params,
        types=read_as,
    )
    fitted = fit_run(frame, config, out, verbose=True)
    from addnorm.report.table_page import write_fit_report

    page = write_fit_report(out, fitted)
    talk.print(_scores(fitted))
    if fitted.note:
        talk.print(f"addnorm: {fitted.note}", soft_wrap=True)
    talk.print(f"addnorm: the page is {page}; addnorm predict {out} NEW.csv", soft_wrap=True)


def _parse_params(keys: list[str], types: list[str], kinds: tuple[str, ...]) -> dict[str, Any]:
    """key=value, values as YAML reads them; column=type."""
    from addnorm.core.errors import UserError, unknown_name_message
    from addnorm.tabular.fit_run import parse_param

    params: dict[str, Any] = {}
    for key in keys:
        name, equals, value = key.partition("=")
        if not equals or not name:
            raise UserError(f"{key!r} is no KEY=VALUE; wanted depth=3, say")
        params[name] = parse_param(value)
    told = params.setdefault("column_types", {}) if types else params.get("column_types", {})
    if not isinstance(told, dict):
        raise UserError(f"column_types={told!r} is no list of types; say --type COLUMN=TYPE")
    for each in types:
        name, _, kind = each.rpartition("=")
        if not name:
            raise UserError(f"{each!r} is no COLUMN=TYPE; wanted --type zip=categorical, say")
        if kind not in kinds:
            raise UserError(unknown_name_message("column type", kind, kinds))
        told[name] = kind
    return params


def _types(columns: list[Any]) -> "Table":
    import numpy as np
    from rich.table import Table

    from addnorm.tabular.columns.reader import format_cell

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name in ("column", "type", "absent", "different", "for example"):
        table.add_column(name, justify="right" if name in ("absent", "different") else "left")
    for column in columns:
        floats = column.values.dtype == np.float64
        here = ~np.isnan(column.values) if floats else column.values != np.array(None)
        values = column.values[here]
        first = int(np.flatnonzero(here)[0]) if here.any() else 0
        absent = f"{1 - here.mean():.1%}" if not here.all() else "-"
        example = format_cell(column, first)
        cut = example if len(example) <= 30 else f"{example[:27]}..."
        different = len(np.unique(values)) if floats else len(set(values))
        table.add_row(column.name, column.kind, absent, f"{different:,}", cut)
    return table


def _scores(fitted: "FitResult") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    measures = list(next(iter(fitted.scores.values()), {}))
    table.add_column(f"on {fitted.tested:,} rows held out" if measures else "nothing held out")
    for measure in measures:
        table.add_column(measure, justify="right")
    for model, scores in fitted.scores.items():
        table.add_row(model, *(f"{scores.get(each, float('nan')):.4g}" for each in measures))
    return table


def warn(text: str) -> None:
    """A line on standard error."""
    print(f"addnorm: {text}", file=sys.stderr)
