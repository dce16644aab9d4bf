"""`addnorm.compare`: run a comparison and write its report."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.callbacks import ComparisonCallback
from addnorm.comparison.engines.base import Engine
from addnorm.comparison.extend import Budget
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.comparison.spec import Comparison
from addnorm.core.validation import check_path
from addnorm.report.comparison.page import write_comparison_report
from addnorm.report.progress.comparison import make_comparison_reporter


def compare(
    spec: Comparison | Mapping[str, Any],
    folder: str | Path,
    *,
    engine: Engine | None = None,
    callback: ComparisonCallback | None = None,
    until: Literal["decided"] | None = None,
    budget: Budget | str | None = None,
    progress: bool = True,
) -> Study:
    """Train every cell of a comparison and write `result.json` and `report.html`.

    The function does what `addnorm compare` does. Called again after an interruption, it resumes.
    Cells run in separate processes, so a script must call it under `if __name__ == "__main__":`.

    Args:
        spec: a spec, or flat keys such as `{"task": "lm", "wiring": "pre_ln,b2t", "lr": "sweep"}`
        folder: output folder; an unfinished comparison with the same spec in it is resumed
        engine: where the cells run; by default one process per core or GPU of this machine
        callback: receives the progress of the comparison, instead of the display
        until: `decided` adds seeds to the arms that are too close to the best one
        budget: limit of the added seeds: cells such as "40", or a time such as "30m"; by default
            as many cells as the comparison has
        progress: whether to show the progress on standard error, as the command does

    Returns:
        The study: the state of each cell, a summary of each arm and a verdict.

    Raises:
        UserError: the spec is not valid, or the folder contains something else
    """
    check_path("folder", folder)
    spec = spec if isinstance(spec, Comparison) else parse_comparison(spec)
    if isinstance(budget, str):
        budget = Budget.parse(budget)
    with ExitStack() as stack:
        if callback is None and progress:
            callback = reporter = make_comparison_reporter()
            stack.callback(reporter.close)
        study = run_comparison(
            spec, folder, engine=engine, callback=callback, until=until, budget=budget
        )
    write_comparison_report(folder)
    return study
