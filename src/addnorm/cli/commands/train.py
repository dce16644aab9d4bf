"""`addnorm train`: a run from a recipe, which goes on where it was."""

import sys
from pathlib import Path
from typing import Annotated

import typer

EXIT_DIVERGED, EXIT_INTERRUPTED = 1, 130


def train(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Task; see `addnorm list tasks`")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Recipe keys: data=FOLDER wiring=pre_ln dim=128 depth=3 ..."
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="RUN", help="Run folder; an unfinished run in it is resumed"
        ),
    ] = Path("run"),
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Recipe in YAML")
    ] = None,
    list_keys: Annotated[
        bool, typer.Option("--list-keys", help="List the recipe keys of the task and exit")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the complete recipe as YAML and exit")
    ] = False,
) -> None:
    """Train a model on a corpus.

    The same command resumes an interrupted run, which ends with the same weights.
    """
    from addnorm.tasks import get_task
    from addnorm.train.recipe import read_recipe

    get_task(task)  # an unknown task fails before the recipe is read
    if list_keys:
        _print_keys(task)
        return
    recipe = read_recipe(task, config, keys or ())
    if dry_run:
        sys.stdout.write(recipe.to_yaml())
        return
    from addnorm.cli.progress.training import make_training_reporter
    from addnorm.train.trainer import train as run_training

    reporter = make_training_reporter(recipe, out)
    try:
        outcome = run_training(recipe, out, callback=reporter)
    finally:
        reporter.close()
    code = {"diverged": EXIT_DIVERGED, "interrupted": EXIT_INTERRUPTED}.get(outcome.ending, 0)
    if code:
        raise typer.Exit(code)


def _print_keys(task: str) -> None:
    from rich.table import Table

    from addnorm.cli.output import make_console, write_page
    from addnorm.train.recipe import list_recipe_keys

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("key", style="bold", no_wrap=True)
    table.add_column("default", overflow="fold")
    table.add_column("description", ratio=1, overflow="fold")
    for name, default, description in list_recipe_keys(task):
        table.add_row(name, default, description)
    write_page(make_console(), table)
