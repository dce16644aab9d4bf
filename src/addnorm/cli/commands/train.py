"""`addnorm train`: a run from a recipe, which goes on where it was."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from addnorm.cli.progress.training import TrainingReporter
    from addnorm.train.recipe import Recipe

EXIT_DIVERGED, EXIT_INTERRUPTED = 1, 130


def train(
    task: Annotated[str, typer.Argument(metavar="TASK", help="translate, lm or classify.")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="data=FOLDER wiring=pre_ln dim=128 depth=3 ..."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="RUN", help="The folder of the run.")
    ] = Path("run"),
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="A recipe in YAML.")
    ] = None,
    keys_help: Annotated[
        bool, typer.Option("--keys", help="List the keys of a recipe and end.", is_eager=True)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the whole recipe as YAML and end.")
    ] = False,
) -> None:
    """Train a model on a corpus.

    The same command goes on with a run that was interrupted, and ends with the same weights.
    """
    from addnorm.core.errors import UserError, unknown_name_message
    from addnorm.train.recipe import MODELS, read_recipe

    if task not in MODELS:
        raise UserError(unknown_name_message("task", task, MODELS))
    if keys_help:
        _list_keys()
        return
    recipe = read_recipe(task, config, keys or ())
    if dry_run:
        sys.stdout.write(recipe.to_yaml())
        return
    from addnorm.train.trainer import train as run

    watcher = _make_callback(recipe, out)
    try:
        outcome = run(recipe, out, callback=watcher)
    finally:
        watcher.close()
    code = {"diverged": EXIT_DIVERGED, "interrupted": EXIT_INTERRUPTED}.get(outcome.ending, 0)
    if code:
        raise typer.Exit(code)


def _list_keys() -> None:
    from rich.table import Table

    from addnorm.cli.output import make_console, write_page
    from addnorm.train.recipe import recipe_keys

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("key", style="bold", no_wrap=True)
    table.add_column("default", overflow="fold")
    table.add_column("what it is", ratio=1, overflow="fold")
    for name, default, words in recipe_keys():
        table.add_row(name, default, words)
    write_page(make_console(), table)


def _make_callback(recipe: "Recipe", out: Path) -> "TrainingReporter":
    from addnorm.cli.progress.training import LogLines, ProgressBarReporter

    kind = ProgressBarReporter if sys.stderr.isatty() else LogLines
    return kind(recipe, out)
