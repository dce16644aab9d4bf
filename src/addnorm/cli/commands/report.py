"""`addnorm report`: rebuild the page of a comparison, a run, a monitor or claims from its rows."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from addnorm.cli.options import SafeCsv

Png = Annotated[
    Path | None,
    typer.Option("--png", metavar="DIR", help="Folder for the charts as PNG (comparisons only)"),
]
Csv = Annotated[
    bool,
    typer.Option("--csv", help="Also write the rows as CSV, of a comparison cells and summary too"),
]


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Output folder of a comparison, a run or claims, or of a monitor"
        ),
    ],
    png: Png = None,
    csv: Csv = False,
    safe_csv: SafeCsv = False,
) -> None:
    """Rebuild the HTML page of a comparison, a run, a monitor or claims."""
    from addnorm.claims.result import is_claims_folder
    from addnorm.comparison.folder_layout import is_comparison
    from addnorm.core.errors import UserError

    if is_claims_folder(folder):
        from addnorm.report.claims_page import write_claims_report

        sys.stdout.write(f"{write_claims_report(folder)}\n")
        return
    if not is_comparison(folder):
        if png is not None:
            raise UserError(f"--png: expected a comparison, got {folder}")
        for path in export_run(folder, csv=csv or safe_csv, safe_csv=safe_csv):
            sys.stdout.write(f"{path}\n")
        return
    for path in export(folder, png=png, csv=csv or safe_csv, safe_csv=safe_csv):
        sys.stdout.write(f"{path}\n")


def export(folder: Path, *, png: Path | None, csv: bool, safe_csv: bool = False) -> list[Path]:
    """Write the page of a comparison, and its PNG and CSV exports; return the paths."""
    from addnorm.comparison.analysis.study import Study
    from addnorm.report.comparison.exports import write_csvs, write_pngs
    from addnorm.report.comparison.page import write_comparison_report

    study = Study.open(folder)
    paths = [write_comparison_report(folder)]
    paths += write_pngs(study, png) if png is not None else []
    paths += write_csvs(study, folder, escape_formulas=safe_csv) if csv else []
    return paths


def export_run(folder: Path, *, csv: bool, safe_csv: bool) -> list[Path]:
    """Write the page of a run or a monitored folder, and its rows as CSV; return the paths."""
    from addnorm.core.errors import UserError
    from addnorm.monitor.watch_folder import is_watch_folder, read_watched_rows
    from addnorm.report.rows_csv import write_rows_csv
    from addnorm.report.run_page import write_training_report
    from addnorm.report.watch_page import write_watch_report
    from addnorm.train.run_folder import CONFIG, read_run_rows

    if (folder / CONFIG).is_file():
        paths, rows = [write_training_report(folder)], list(read_run_rows(folder)) if csv else []
    elif is_watch_folder(folder):
        paths, rows = [write_watch_report(folder)], read_watched_rows(folder) if csv else []
    else:
        raise UserError(
            f"no comparison, run, monitor or claims in {folder}; use the output folder of `addnorm "
            "compare`, `addnorm train`, `addnorm claims run` or addnorm.Monitor"
        )
    if csv:
        paths.append(write_rows_csv(folder / "rows.csv", rows, escape_formulas=safe_csv))
    return paths
