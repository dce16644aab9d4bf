"""`addnorm tune`: search for the parameters of an estimator."""

from pathlib import Path
from typing import Annotated

import typer

from addnorm.cli.table_options import (
    ColumnTypes,
    Drop,
    Ids,
    Keys,
    Seed,
    TableFile,
    Target,
    Task,
    TestSize,
    open_table,
    scores_table,
)


def tune(
    table: TableFile,
    keys: Keys = None,
    target: Target = "",
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Output folder of the search")
    ] = Path("tune"),
    task: Task = "auto",
    searcher: Annotated[
        str,
        typer.Option(
            "--searcher", help="random, halving, or tpe of Optuna (pip install 'addnorm[tune]')"
        ),
    ] = "random",
    trials: Annotated[
        int, typer.Option("--trials", help="Number of trials; of halving, in the first round")
    ] = 30,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", help="Time budget, with that of the runs it resumes"),
    ] = None,
    cv: Annotated[int, typer.Option("--cv", help="Splits that each trial is scored on")] = 3,
    scoring: Annotated[
        str | None,
        typer.Option(
            "--scoring",
            help="Metric of scikit-learn, such as roc_auc; by default the log loss or the RMSE",
        ),
    ] = None,
    pruning: Annotated[
        bool, typer.Option("--pruning/--no-pruning", help="Stop unpromising trials early")
    ] = True,
    column_types: ColumnTypes = None,
    drop: Drop = None,
    ids: Ids = None,
    test_size: TestSize = 0.2,
    seed: Seed = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Start again in a folder that contains a search")
    ] = False,
) -> None:
    """Search for the best parameters of a table model, and fit it.

    Every KEY=VALUE is fixed; model=NAME selects the model and its search space. The same command
    resumes a search that was interrupted, and more --trials or --max-seconds continue one that is
    finished. `addnorm predict` uses the folder.
    """
    from rich.console import Console

    from addnorm.report.tabular.tune_page import write_tune_report
    from addnorm.tabular.runs.tune_run import TuneOptions, prepare_tune_folder, tune_run

    prepare_tune_folder(out, force=force)
    console = Console(stderr=True, highlight=False, markup=False)
    frame, config = open_table(
        console,
        table,
        keys=keys,
        target=target,
        task=task,
        column_types=column_types,
        drop=drop,
        ids=ids,
        test_size=test_size,
        seed=seed,
    )
    options = TuneOptions(
        searcher=searcher,
        n_trials=trials,
        max_seconds=max_seconds,
        cv=cv,
        scoring=scoring,
        pruning=pruning,
    )
    result = tune_run(frame, config, out, options=options, verbose=True)
    search = result.search
    values = ", ".join(f"{name}={value}" for name, value in search.best_params_.items())
    console.print(
        f"addnorm: best of {len(search.trials_)} trials: {values or 'the parameters as given'}",
        soft_wrap=True,
    )
    if result.fitted is None:
        console.print(
            f"addnorm: {out} already contains this search and its fit; continue it with more "
            "--trials or --max-seconds, or start again with --force",
            soft_wrap=True,
        )
        return
    page = write_tune_report(out, search, result.fitted)
    console.print(scores_table(result.fitted))
    if result.fitted.note:
        console.print(f"addnorm: {result.fitted.note}", soft_wrap=True)
    console.print(f"addnorm: report: {page}", soft_wrap=True)
    console.print(f"addnorm: predict new rows with: addnorm predict {out} NEW.csv", soft_wrap=True)
