"""`addnorm train`: train a model from a recipe, or resume its run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from addnorm.train.recipe import Recipe

EXIT_DIVERGED = 1


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
    if list_keys:
        _print_keys(task)
        return
    from addnorm.tasks import get_task
    from addnorm.train.recipe import read_recipe

    get_task(task)  # an unknown task fails before the recipe is read
    recipe = _read_start(task, config, keys or [], None if dry_run else out)
    recipe = read_recipe(task, config, keys or ()) if recipe is None else recipe
    if dry_run:
        sys.stdout.write(recipe.to_yaml())
        return
    from addnorm.cli.progress.training import make_training_reporter
    from addnorm.core.interrupts import interrupt_exit_code
    from addnorm.train.trainer import train as run_training

    reporter = make_training_reporter(recipe, out)
    try:
        outcome = run_training(recipe, out, callback=reporter)
    finally:
        reporter.close()
    if outcome.ending == "interrupted":
        raise typer.Exit(interrupt_exit_code())
    if outcome.ending == "diverged":
        raise typer.Exit(EXIT_DIVERGED)


def _read_start(
    task: str, config: Path | None, keys: list[str], out: Path | None
) -> "Recipe | None":
    """Return the recipe of a run that goes on with a model, None for other runs."""
    if config is None and not any(key.partition("=")[0].strip() == "start" for key in keys):
        return None  # so that other runs need not import transformers
    from addnorm.core.key_values import load_yaml, parse_key_values

    values = ({} if config is None else load_yaml(config, "recipe")) | parse_key_values(keys)
    if values.get("start") is None:
        return None
    from addnorm.rewiring.continued_training import read_start_recipe

    return read_start_recipe(task, config, keys, out)


def _print_keys(task: str) -> None:
    from rich.table import Table

    from addnorm.cli.index import read_section
    from addnorm.cli.output import make_console, write_page

    keys = (read_section("recipe_keys") or {}).get(task)
    if keys is None:
        from addnorm.tasks import get_task
        from addnorm.train.recipe import list_recipe_keys

        get_task(task)  # an unknown task gets a suggestion
        keys = list_recipe_keys(task)

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("key", style="bold", no_wrap=True)
    table.add_column("default", overflow="fold")
    table.add_column("description", ratio=1, overflow="fold")
    for name, default, description in keys:
        table.add_row(name, default, description)
    write_page(make_console(), table)
