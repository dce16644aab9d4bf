"""Run folder of `addnorm tune`: the trials of a search and the fit of the best one.

The folder contains `search.json` and `trials.jsonl` (see `trials.py`), and the files of
`addnorm fit`, so that `addnorm predict` uses it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from addnorm.core.files import read_yaml
from addnorm.tabular.fit_run import (
    CONFIG,
    FitConfig,
    FitResult,
    build_estimator,
    check_run_folder,
    drop_columns,
    fit_run,
)
from addnorm.tabular.io.store import FILE as ESTIMATOR_FILE
from addnorm.tabular.search.search import TabularSearch
from addnorm.tabular.search.trials import SETTINGS_FILE, TRIALS_FILE
from addnorm.tabular.task_setup import infer_column_types, split_rows, split_target


class TuneOptions(BaseModel):
    """Options of a search; see the parameters of `TabularSearch`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    searcher: str = "random"
    """`random`, `halving` or `tpe`."""
    n_trials: int = 30
    """Number of trials."""
    max_seconds: float | None = None
    """Wall time of all runs of the search together; None is no limit."""
    cv: int = 3
    """Number of splits."""
    scoring: str | None = None
    """Metric; None selects the log loss or the RMSE."""
    pruning: bool = True
    """Whether unpromising trials are stopped."""


@dataclass(frozen=True)
class TuneResult:
    """Search and the fit of its best trial."""

    search: TabularSearch
    fitted: FitResult | None
    """None if the best trial was fitted by an earlier run."""


def prepare_tune_folder(folder: Path, *, force: bool) -> None:
    """Delete the search of a folder if `force`; refuse a folder with a fit that is no search."""
    if (folder / SETTINGS_FILE).exists() and not force:
        return
    check_run_folder(folder, force=force)
    for name in (SETTINGS_FILE, TRIALS_FILE, ESTIMATOR_FILE):
        (folder / name).unlink(missing_ok=True)


def tune_run(
    frame: Any,
    config: FitConfig,
    folder: str | Path,
    *,
    options: TuneOptions,
    verbose: bool = False,
) -> TuneResult:
    """Search on the training rows of a frame, then fit the best parameters and test them.

    The test rows are those of `fit_run` with the same config; the search does not see them.
    """
    folder = Path(folder)
    X, y = split_target(frame, config.target)
    X = drop_columns(X, (*config.drop, *config.ids))
    estimator = build_estimator(config)
    estimator.set_params(column_types=infer_column_types(X, config.params.get("column_types")))
    if config.holdout:
        train, _ = split_rows(
            y, config.holdout, classify=config.task == "classify", seed=config.seed
        )
        X, y = X.iloc[train], y.iloc[train]
    search = TabularSearch(
        estimator,
        **options.model_dump(),
        refit=False,
        folder=folder,
        random_state=config.seed,
        verbose=verbose,
    ).fit(X, y)
    best = config.model_copy(update={"params": config.params | search.best_params_})
    if (folder / ESTIMATOR_FILE).exists() and read_yaml(folder / CONFIG) == best.model_dump(
        mode="json"
    ):
        return TuneResult(search, None)
    return TuneResult(search, fit_run(frame, best, folder, verbose=verbose))
