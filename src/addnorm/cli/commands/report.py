"""`addnorm report`: make the page of a comparison or of a run again from its rows."""

import sys
from pathlib import Path
from typing import Annotated

import typer

Png = Annotated[Path | None, typer.Option("--png", metavar="DIR", help="Also the charts as PNG.")]
Csv = Annotated[bool, typer.Option("--csv", help="Also cells, summary and rows as CSV.")]


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The -o folder of a comparison, a run or claims.")
    ],
    png: Png = None,
    csv: Csv = False,
) -> None:
    """Make the page of a comparison, a run or claims anew."""
    from addnorm.claims.result import is_claims_folder
    from addnorm.comparison.layout import is_comparison
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
                f"no comparison and no run at {folder}; wanted the -o folder of `addnorm compare` "
                "or `addnorm train`"
            )
        if png is not None or csv:
            raise UserError("--png and --csv are for comparisons; this is no comparison's folder")
        sys.stdout.write(f"{write_training_report(folder)}\n")
        return
    for path in export(folder, png=png, csv=csv):
        sys.stdout.write(f"{path}\n")


def export(folder: Path, *, png: Path | None, csv: bool) -> list[Path]:
    """Write the page of a comparison, and what else is wanted; the paths."""
    from addnorm.comparison.analysis.study import Study
    from addnorm.report.comparison.exports import write_csvs, write_pngs
    from addnorm.report.comparison.page import write_comparison_report

    study = Study.open(folder)
    made = [write_comparison_report(folder)]
    made += write_pngs(study, png) if png is not None else []
    made += write_csvs(study, folder) if csv else []
    return made
