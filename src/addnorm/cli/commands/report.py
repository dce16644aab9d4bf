"""`addnorm report`: rebuild the page of a comparison, a run or claims from its rows."""

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
    bool, typer.Option("--csv", help="Also write cells, summary and rows as CSV (comparisons only)")
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


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Output folder of a comparison, a run or claims")
    ],
    png: Png = None,
    csv: Csv = False,
    safe_csv: SafeCsv = False,
    svg: Svg = None,
    pdf: Pdf = None,
    latex: Latex = False,
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
        if any((png, csv, safe_csv, svg, pdf, latex)):
            raise UserError(
                f"--png, --svg, --pdf, --csv, --latex: expected a comparison, got the run in "
                f"{folder}"
            )
        sys.stdout.write(f"{write_training_report(folder)}\n")
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
