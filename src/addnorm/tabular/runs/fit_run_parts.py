"""Run folder of `addnorm fit` for a table that is read in parts."""

import time
from itertools import islice
from pathlib import Path
from typing import Any

from addnorm.core.locks import folder_lock
from addnorm.tabular.fit_run import SAMPLE_ROWS, FitConfig, FitResult, build_estimator, save_run
from addnorm.tabular.fit_scores import score_estimator
from addnorm.tabular.streaming.fit_parts import fit_parts
from addnorm.tabular.streaming.table_parts import TableParts

NOTE = "Gradient boosting was not fitted for comparison, because the table was read in parts."


def read_first_part(path: str | Path) -> tuple[Any, int]:
    """Return the first rows of a table, and the number of all rows."""
    parts = TableParts(path)
    (part,) = islice(parts, 1)
    return part.frame, parts.num_rows


def fit_run_parts(config: FitConfig, folder: str | Path, *, verbose: bool = False) -> FitResult:
    """Fit an estimator to the table of a config in parts, write its run folder, and test it."""
    estimator = build_estimator(config, verbose=verbose)
    with folder_lock(Path(folder), "fitting"):
        started = time.monotonic()
        test = fit_parts(
            estimator,
            config.table,
            config.target,
            drop=(*config.drop, *config.ids),
            test_size=config.holdout,
        )
        seconds, rows = time.monotonic() - started, TableParts(config.table).num_rows
        if test is None:
            result = FitResult(config, estimator, rows, note=NOTE)
        else:
            X, y = test[list(estimator.feature_names_in_)], test[config.target]
            scores = {"addnorm": score_estimator(estimator, X, y) | {"seconds": seconds}}
            reliability = estimator.reliability(X, y) if config.task == "classify" else None
            trained = round(rows * (1 - config.holdout))
            result = FitResult(
                config, estimator, trained, len(test), scores, reliability, NOTE, X[:SAMPLE_ROWS]
            )
        save_run(result, folder)
    return result
