"""`addnorm report`: rebuild the page of a comparison, a run or claims from its rows."""

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
    bool, typer.Option("--csv", help="Also write cells, summary and rows as CSV (comparisons only)")
]


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Output folder of a comparison, a run or claims")
    ],
    png: Png = None,
    csv: Csv = False,
    safe_csv: SafeCsv = False,
) -> None:
    """Rebuild the HTML page of a comparison, a run or claims."""
    from addnorm.claims.result import is_claims_folder
    from addnorm.comparison.folder_layout import is_comparison
    from addnorm.core.errors import UserError

    if is_claims_folder(folder):
        from addnorm.report.claims_page import write_claims_report

        sys.stdout.write(f"{write_claims_report(folder)}\n")
        return
    if not is_comparison(folder):
        from addnorm.report.run_page import write_training_report
        from addnorm.train.run_folder import CONFIG

        if not (folder / CONFIG).is_file():
            raise UserError(
                f"no comparison, run or claims in {folder}; use the output folder of `addnorm "
                "compare`, `addnorm train` or `addnorm claims run`"
            )
        if png is not None or csv or safe_csv:
            raise UserError(f"--png, --csv: expected a comparison, got the run in {folder}")
        sys.stdout.write(f"{write_training_report(folder)}\n")
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
