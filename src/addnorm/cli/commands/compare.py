"""`addnorm compare`: which arrangement trains, at which depth, at which learning rate."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from addnorm.cli.commands.report import Csv, Png
from addnorm.cli.comparison_options import add_axes, add_transfer_sizes, check_execution, parse_spec
from addnorm.cli.options import SafeCsv

if TYPE_CHECKING:
    from addnorm.comparison.analysis.study import Study
    from addnorm.comparison.engines import Engine
    from addnorm.comparison.spec import Comparison

OptionalStr = str | None
AXES_PANEL = "Axes"
EXECUTION_PANEL = "Execution"
SLURM_PANEL = "Jobs of SLURM (--engine slurm)"


def compare(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Recipe keys for all cells, such as dim=128"),
    ] = None,
    wiring: Annotated[
        OptionalStr,
        typer.Option(help="Wirings, such as post_ln,pre_ln,b2t", rich_help_panel=AXES_PANEL),
    ] = None,
    norm: Annotated[
        OptionalStr, typer.Option(help="Norms, such as layer,rms", rich_help_panel=AXES_PANEL)
    ] = None,
    depth: Annotated[
        OptionalStr,
        typer.Option(help="Numbers of layers, such as 6,12", rich_help_panel=AXES_PANEL),
    ] = None,
    warmup: Annotated[
        OptionalStr,
        typer.Option(
            help="Warm-up steps, such as 0,100; own adds the schedule each wiring recommends",
            rich_help_panel=AXES_PANEL,
        ),
    ] = None,
    lr: Annotated[
        OptionalStr,
        typer.Option(
            help="Learning rates, such as 1e-3,3e-3, or sweep", rich_help_panel=AXES_PANEL
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="Further axis, such as optimizer=adamw,muon: a recipe key or, for a task of your "
            "own, any name; may be repeated",
            rich_help_panel=AXES_PANEL,
        ),
    ] = None,
    transfer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZES",
            help="Does the best learning rate of the smallest model stay the best? Sizes such as "
            "depth=4,8,16; more of them may follow as keys (dim=64,128). Sweeps lr if not given",
            rich_help_panel=AXES_PANEL,
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds per setting", rich_help_panel=AXES_PANEL)
    ] = None,
    task: Annotated[
        OptionalStr,
        typer.Option(
            help="Text task on a demo corpus (see `addnorm list tasks`); table:FILE; a recipe in "
            "YAML that names its data; or FILE.py:FUNCTION, your own training"
        ),
    ] = None,
    target: Annotated[
        OptionalStr, typer.Option(metavar="COLUMN", help="Column of the table to predict")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps per cell")] = None,
    schedule: Annotated[
        OptionalStr, typer.Option(help="Learning-rate schedule of all arms: constant, cosine, ...")
    ] = None,
    score: Annotated[
        int | None, typer.Option(help="Held-out examples to score each cell on; 0 disables scoring")
    ] = None,
    mode: Annotated[
        OptionalStr,
        typer.Option(help="fair, or halving to stop the worse settings of each arm early"),
    ] = None,
    until: Annotated[
        OptionalStr,
        typer.Option(help="decided: add seeds to the arms that are too close to the best one"),
    ] = None,
    budget: Annotated[
        OptionalStr,
        typer.Option(
            metavar="LIMIT", help="Limit of --until: added cells such as 40, or a time such as 30m"
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Spec of the comparison in YAML"),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Run the comparison of `make demo`")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Output folder; an unfinished comparison in it is resumed",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Cells at the same time, each on one core or GPU", rich_help_panel=EXECUTION_PANEL
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="local, or ray or slurm for a cluster", rich_help_panel=EXECUTION_PANEL),
    ] = "local",
    address: Annotated[
        OptionalStr,
        typer.Option(help="Address of the Ray cluster", rich_help_panel=EXECUTION_PANEL),
    ] = None,
    hang_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds without progress before a cell is killed", rich_help_panel=EXECUTION_PANEL
        ),
    ] = 600.0,
    gpus_per_cell: Annotated[
        OptionalStr,
        typer.Option(
            metavar="N",
            help="GPUs of a cell, or different ones by axis, such as 1,depth=48:4; several are "
            "used by torchrun",
            rich_help_panel=EXECUTION_PANEL,
        ),
    ] = None,
    partition: Annotated[
        OptionalStr, typer.Option(help="Partition of the jobs", rich_help_panel=SLURM_PANEL)
    ] = None,
    time: Annotated[
        OptionalStr,
        typer.Option(
            help="Time limit of a job, such as 4:00:00; a cell that reaches it is queued again and "
            "resumes. Different ones by axis: 1:00:00,depth=48:8:00:00",
            rich_help_panel=SLURM_PANEL,
        ),
    ] = None,
    memory: Annotated[
        OptionalStr,
        typer.Option(
            help="Memory of a job, such as 16G, or 16G,depth=48:64G", rich_help_panel=SLURM_PANEL
        ),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION",
            help="Further option of sbatch, such as --account=lab; may be repeated",
            rich_help_panel=SLURM_PANEL,
        ),
    ] = None,
    setup: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMMAND",
            help="Shell command at the start of a job, such as 'module load cuda'; may be repeated",
            rich_help_panel=SLURM_PANEL,
        ),
    ] = None,
    png: Png = None,
    csv: Csv = False,
    safe_csv: SafeCsv = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the spec as YAML, with --engine slurm also the scripts, and exit",
        ),
    ] = False,
) -> None:
    """Train several arrangements and report which ones train.

    Rerun the same command to resume an interrupted comparison.
    """
    axes = {"wiring": wiring, "norm": norm, "depth": depth, "warmup": warmup, "lr": lr}
    effort = {"seeds": seeds, "steps": steps, "schedule": schedule, "score": score, "mode": mode}
    options = {
        name: value
        for name, value in (axes | effort | {"target": target}).items()
        if value is not None
    }
    if transfer:
        options, axis, keys = add_transfer_sizes(options, axis or [], keys or [], transfer)
    options = add_axes(options, axis or [])
    slurm_options: dict[str, Any] = {"partition": partition, "time": time, "memory": memory}
    slurm_options |= {"sbatch": tuple(sbatch or ()), "setup": tuple(setup or ())}
    execution: dict[str, Any] = {"workers": workers, "address": address, "timeout": hang_timeout}
    execution["gpus_per_cell"] = gpus_per_cell
    check_execution(engine, address, slurm_options)
    spec = parse_spec(options, keys or [], task, config, demo=demo)
    folder = out or Path("demo" if demo else "comparison")
    if dry_run:
        _print_dry_run(spec, folder, engine, execution, slurm_options)
        return
    from addnorm.core.errors import UserError
    from addnorm.core.interrupts import interrupt_exit_code
    from addnorm.report.comparison.exports import write_csvs, write_pngs
    from addnorm.report.comparison.run_and_report import compare as run_and_report
    from addnorm.report.progress.comparison import make_comparison_reporter

    if budget is not None and until is None:
        raise UserError("--budget: expected --until decided; add it, or leave out --budget")
    reporter = make_comparison_reporter()
    try:
        study = run_and_report(
            spec,
            folder,
            engine=_make_engine(engine, execution, slurm_options),
            callback=reporter,
            until=until,  # type: ignore[arg-type] # checked there
            budget=budget,
        )
    finally:
        reporter.close()
    _print_result(study, json=json, transfer=bool(transfer))
    if png is not None:
        write_pngs(study, png)
    if csv or safe_csv:
        write_csvs(study, folder, escape_formulas=safe_csv)
    if study.interrupted:
        raise typer.Exit(interrupt_exit_code())


def _make_engine(name: str, execution: dict[str, Any], slurm_options: dict[str, Any]) -> "Engine":
    from addnorm.comparison.engines import SlurmOptions, make_engine

    values = {option: value for option, value in slurm_options.items() if value}
    return make_engine(name, **execution, slurm=SlurmOptions(**values) if values else None)


def _print_dry_run(
    spec: "Comparison",
    folder: Path,
    engine: str,
    execution: dict[str, Any],
    slurm_options: dict[str, Any],
) -> None:
    """Print the spec; the scripts of an engine follow as comments, so that it stays a spec file."""
    from addnorm.comparison.run import check_comparison, preview_jobs

    check_comparison(spec)
    sys.stdout.write(spec.to_yaml())
    if engine == "slurm":
        from addnorm.comparison.engines.slurm import SlurmEngine

        slurm = _make_engine(engine, execution, slurm_options)
        assert isinstance(slurm, SlurmEngine)
        folder = folder.absolute()
        for path, script in slurm.preview_scripts(preview_jobs(spec, folder), folder).items():
            sys.stdout.write(f"\n# {path}\n")
            sys.stdout.writelines(f"#   {line}".rstrip() + "\n" for line in script.splitlines())


def _print_result(study: "Study", *, json: bool, transfer: bool = False) -> None:
    from addnorm.cli.output import make_console, write_json, write_page
    from addnorm.cli.summary_table import summary_table
    from addnorm.comparison.analysis.export import study_to_dict

    answers: list[str] = []
    result = study_to_dict(study)
    if transfer:
        from addnorm.comparison.analysis.transfer import analyze_transfer
        from addnorm.report.transfer.transfer_page import write_transfer_page

        page = write_transfer_page(study)
        results = analyze_transfer(study.cells)
        result["transfer"] = [each.to_dict() for each in results]
        sentences = [text for each in results for text in (each.sentence(), each.warning()) if text]
        answers = ["", *sentences, f"page: {page}"]
    if json:
        write_json(result)
        return
    write_page(make_console(), summary_table(study), "", *study.verdict, *answers)
