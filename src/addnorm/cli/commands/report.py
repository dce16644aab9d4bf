"""`addnorm report`: rebuild the page of a comparison, a run, a monitor or claims from its rows."""

import sys
from collections.abc import Mapping
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

Svg = Annotated[
    Path | None,
    typer.Option("--svg", metavar="DIR", help="Folder for the charts as SVG (comparisons only)"),
]
Pdf = Annotated[
    Path | None,
    typer.Option("--pdf", metavar="DIR", help="Folder for the charts as PDF (comparisons only)"),
]
Latex = Annotated[
    bool, typer.Option("--latex", help="Also write the summary as summary.tex (comparisons only)")
]

FOLDER_HINT = (
    "use the output folder of `addnorm compare`, `addnorm train`, `addnorm claims run` or "
    "addnorm.Monitor"
)


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
    svg: Svg = None,
    pdf: Pdf = None,
    latex: Latex = False,
) -> None:
    """Rebuild the page of a comparison, run, monitor or claims."""
    from addnorm.core.errors import UserError

    if not folder.is_dir():  # before the slow imports
        raise UserError(f"expected a folder, got {folder}, which does not exist; {FOLDER_HINT}")
    from addnorm.claims.result import is_claims_folder
    from addnorm.comparison.folder_layout import is_comparison

    if is_claims_folder(folder):
        from addnorm.report.claims_page import write_claims_report

        sys.stdout.write(f"{write_claims_report(folder)}\n")
        return
    if not is_comparison(folder):
        if any((png, svg, pdf, latex)):
            raise UserError(f"--png, --svg, --pdf, --latex: expected a comparison, got {folder}")
        for path in export_run(folder, csv=csv or safe_csv, safe_csv=safe_csv):
            sys.stdout.write(f"{path}\n")
        return
    figures = {"png": png, "svg": svg, "pdf": pdf}
    for path in export(folder, figures, csv=csv or safe_csv, safe_csv=safe_csv, latex=latex):
        sys.stdout.write(f"{path}\n")


def export(
    folder: Path,
    figures: Mapping[str, Path | None],
    *,
    csv: bool = False,
    safe_csv: bool = False,
    latex: bool = False,
) -> list[Path]:
    """Write the page of a comparison and its exports; return the paths.

    Args:
        folder: folder of the comparison
        figures: folder of the charts by format: png, svg or pdf
        csv: whether to write tables as CSV
        safe_csv: whether texts that a spreadsheet would run get an apostrophe before them
        latex: whether to write the summary as a LaTeX table
    """
    from addnorm.comparison.analysis.study import Study
    from addnorm.report.comparison.exports import write_csvs, write_figures
    from addnorm.report.comparison.page import write_comparison_report
    from addnorm.report.tables.latex import write_latex

    study = Study.open(folder)
    paths = [write_comparison_report(folder)]
    for kind, target in figures.items():
        if target is not None:
            paths += write_figures(study, target, kind=kind)  # type: ignore[arg-type]
    paths += write_csvs(study, folder, escape_formulas=safe_csv) if csv else []
    paths += [write_latex(study, folder)] if latex else []
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
        raise UserError(f"no comparison, run, monitor or claims in {folder}; {FOLDER_HINT}")
    if csv:
        paths.append(write_rows_csv(folder / "rows.csv", rows, escape_formulas=safe_csv))
    return paths
