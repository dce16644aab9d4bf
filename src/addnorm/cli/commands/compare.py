"""`addnorm compare`: which arrangement trains, at which depth, at which learning rate."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from addnorm.cli.commands.report import Csv, Png, export

if TYPE_CHECKING:
    from addnorm.comparison.analysis.study import Study
    from addnorm.comparison.spec import Comparison

EXIT_INTERRUPTED = 130

OptionalStr = str | None
AXES = "What is varied"
WORK = "How it is carried out"


def compare(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys of a recipe, for all cells: dim=128 ..."),
    ] = None,
    wiring: Annotated[
        OptionalStr, typer.Option(help="Wirings: post_ln,pre_ln,b2t", rich_help_panel=AXES)
    ] = None,
    norm: Annotated[
        OptionalStr, typer.Option(help="Norms: layer,rms", rich_help_panel=AXES)
    ] = None,
    depth: Annotated[OptionalStr, typer.Option(help="Layers: 6,12", rich_help_panel=AXES)] = None,
    warmup: Annotated[
        OptionalStr,
        typer.Option(
            help="Steps of warm-up: 0,100; `own` adds each arm with the schedule it recommends.",
            rich_help_panel=AXES,
        ),
    ] = None,
    lr: Annotated[
        OptionalStr,
        typer.Option(help="Learning rates: 1e-3,3e-3, or sweep.", rich_help_panel=AXES),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds each setting gets.", rich_help_panel=AXES)
    ] = None,
    task: Annotated[
        OptionalStr,
        typer.Option(
            help="translate, lm or classify on a demo corpus; table:FILE; or a recipe.yaml with "
            "data."
        ),
    ] = None,
    target: Annotated[
        OptionalStr, typer.Option(metavar="COLUMN", help="The column of a table to predict.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of each cell.")] = None,
    schedule: Annotated[
        OptionalStr, typer.Option(help="The schedule all arms share: constant, cosine, ...")
    ] = None,
    score: Annotated[
        int | None, typer.Option(help="Held-out records each cell answers; 0 for none.")
    ] = None,
    mode: Annotated[
        OptionalStr, typer.Option(help="fair, or halving: the worse settings of an arm end early.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="A study in YAML.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="The comparison of `make demo`.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The folder of it all.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Cells at a time; a core or a GPU each.", rich_help_panel=WORK),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray for a cluster.", rich_help_panel=WORK)
    ] = "local",
    address: Annotated[
        OptionalStr, typer.Option(help="The address of the Ray cluster.", rich_help_panel=WORK)
    ] = None,
    limit: Annotated[
        float,
        typer.Option(help="Seconds without a step until a cell is hung.", rich_help_panel=WORK),
    ] = 600.0,
    png: Png = None,
    csv: Csv = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the whole study as YAML and end.")
    ] = False,
) -> None:
    """Train arrangements side by side and tell which train.

    The same command goes on with a comparison that was interrupted.
    """
    axes = {"wiring": wiring, "norm": norm, "depth": depth, "warmup": warmup, "lr": lr}
    budget = {"seeds": seeds, "steps": steps, "schedule": schedule, "score": score, "mode": mode}
    budget["target"] = target
    given = {name: value for name, value in (axes | budget).items() if value is not None}
    spec = _parse_spec(given, keys or [], task, config, demo=demo)
    if dry_run:
        from addnorm.comparison.shared_data import check_data

        spec.check()
        check_data(spec)
        sys.stdout.write(spec.to_yaml())
        return
    from addnorm.cli.progress.comparison import make_comparison_reporter
    from addnorm.comparison.engines import make_engine
    from addnorm.comparison.run import compare as run
    from addnorm.core.errors import UserError

    if address is not None and engine != "ray":
        raise UserError("--address is that of a Ray cluster; add --engine ray, or leave it out")
    folder = out or Path("demo" if demo else "comparison")
    reporter = make_comparison_reporter()
    try:
        study = run(
            spec,
            folder,
            engine=make_engine(engine, workers=workers, address=address, timeout=limit),
            callback=reporter,
        )
    finally:
        reporter.close()
    _print_result(study, json=json)
    export(folder, png=png, csv=csv)
    if study.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _parse_spec(
    options: dict[str, Any], keys: list[str], task: str | None, config: Path | None, *, demo: bool
) -> "Comparison":
    """The spec from a file, the options and the keys, of which the later ones win."""
    from addnorm.comparison.demo import DEMO_SPEC
    from addnorm.comparison.spec import AXES, Comparison, read_spec, task_keys
    from addnorm.core.errors import UserError
    from addnorm.core.key_values import parse_key_values

    if demo and (config is not None or task is not None):
        raise UserError("--demo is a study of its own; leave out --config and --task, or --demo")
    values: dict[str, Any] = dict(DEMO_SPEC) if demo else read_spec(config) if config else {}
    pairs = parse_key_values(keys)
    if twice := [name for name in options if name in pairs]:
        raise UserError(
            f"{twice[0]} is given twice, as --{twice[0]} and as a key; keep one of them"
        )
    more = (task_keys(task) if task else {}) | options | pairs
    if "grids" in values and any(name in more for name in AXES):
        several = ", ".join(f"--{name}" for name in AXES if name in more)
        raise UserError(
            f"{'--demo' if demo else config} has several grids, and {several} would change one; "
            "leave it out, or write the axes into the grids of a study of your own"
        )
    return Comparison.of(values | more)


def _print_result(study: "Study", *, json: bool) -> None:
    """The result on standard output."""
    from addnorm.cli.output import make_console, write_json, write_page
    from addnorm.cli.summary_table import summary_table

    if json:
        write_json(study.result())
        return
    write_page(make_console(), summary_table(study), "", *study.verdict)
