"""`addnorm doctor`: report the norms and residual connections of a model and audit them."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

    from addnorm.doctor.report import Report

EXIT_FINDINGS = 1
DEFAULT_STRESS_LR = 1e-3
"""Default learning rate of the stress test."""
LEVELS = ("info", "warning", "error", "never")


def doctor(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="package.module:callable, file.py:callable, hf:FAMILY, hf:./config.json, a run "
            "folder of addnorm train, or the folder of an addnorm.Monitor",
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="SPEC",
            help='Input such as "ids:int64[2,128]<50257"; repeat for each input [default: guessed]',
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option("--depth", min=1, help="Number of layers to build; hf: targets only"),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            metavar="CALLABLE",
            help="package.module:callable from the model to its optimizer, to check weight decay",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="JSON or YAML file with keyword arguments of TARGET; reports those without effect",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON")] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write the report to this HTML file"),
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on",
            metavar="SEVERITY",
            help="Lowest severity that makes the exit code 1: info, warning, error or never",
        ),
    ] = "warning",
    stress: Annotated[
        bool,
        typer.Option("--stress", help="Also train copies for 40 steps at three learning rates"),
    ] = False,
    lr: Annotated[
        float | None,
        typer.Option("--lr", help="Middle learning rate of the stress test [default: 1e-3]"),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            "--loss",
            metavar="LOSS",
            help="package.module:callable from the model's output to a scalar; with --stress also "
            "cross_entropy, mse or own",
        ),
    ] = None,
) -> None:
    """Report and audit the norms and residual adds of any model.

    Importing TARGET runs its code, so use it on code that you trust. Nothing is downloaded and the
    model is left unchanged. Exit codes: 0 no finding reaches the severity of --fail-on, 1 some
    finding does, 2 the model could not be examined.
    """
    from addnorm.core.errors import UserError, unknown_name_message

    if fail_on not in LEVELS:
        raise UserError(f"--fail-on: {unknown_name_message('severity', fail_on, LEVELS)}")
    if lr is not None and not stress:
        raise UserError(f"--lr {lr:g} requires --stress; add --stress or omit --lr")
    from addnorm.cli.watched_rows import diagnose_folder, find_rows, print_sentences

    rows_folder = find_rows(target)
    if rows_folder is not None:
        given = [inputs, depth, optimizer, config, html, loss, stress or None]
        if any(option is not None for option in given):
            raise UserError(
                f"{target}: expected a model for these options, got the rows of a monitor; omit "
                "all options but --json and --fail-on"
            )
        worst = print_sentences(diagnose_folder(rows_folder), rows_folder, json=json)
        _exit_if(worst, fail_on)
        return
    with redirect_stdout(sys.stderr):  # keep what the user's code prints out of the report
        report = _diagnose(
            target, inputs or [], depth=depth, optimizer=optimizer, config=config,
            lr=DEFAULT_STRESS_LR if stress and lr is None else lr, loss=loss,
        )  # fmt: skip
    if html is not None:
        from addnorm.report.doctor_page import write_doctor_page

        write_doctor_page(report, html)
        print(f"addnorm: wrote {html}", file=sys.stderr)
    if json:
        sys.stdout.write(report.to_json() + "\n")
    else:
        from addnorm.cli.output import make_console, write_page

        console = make_console()
        write_page(console, *_render_report(report, console))
    sys.stdout.flush()
    _exit_if(report.worst(), fail_on)


def _exit_if(worst: str | None, fail_on: str) -> None:
    """Exit with code 1 if the highest severity reaches that of `--fail-on`."""
    if fail_on != "never" and worst and LEVELS.index(worst) >= LEVELS.index(fail_on):
        raise typer.Exit(EXIT_FINDINGS)


def _diagnose(
    target: str,
    specs: list[str],
    *,
    depth: int | None,
    optimizer: str | None,
    config: Path | None,
    lr: float | None,
    loss: str | None,
) -> "Report":
    from dataclasses import replace

    from addnorm.doctor import doctor as diagnose
    from addnorm.doctor.loading.example_inputs import guess_inputs, parse_input_specs
    from addnorm.doctor.loading.targets import (
        build_optimizer,
        import_target,
        load_loss,
        read_options,
    )
    from addnorm.doctor.stress_test import StressTestError
    from addnorm.doctor.stress_test import stress as run_stress_test

    loss_function = None if loss is None else load_loss(loss, stress=lr is not None)
    parsed = parse_input_specs(specs) if specs else None
    options = None if config is None else read_options(config)
    model, notes = _load_model(target, depth, options)
    for note in notes:
        print(f"addnorm: {note}", file=sys.stderr)
    example = guess_inputs(model) if parsed is None else parsed
    extra: dict[str, Any] = {}
    if optimizer is not None:
        extra["optimizer"] = build_optimizer(optimizer, model)
    if options is not None:
        extra |= {"config": options, "build": import_target(target, "")}
    scalar = None if isinstance(loss_function, str) else loss_function
    report = diagnose(model, example, scalar, **extra)
    if lr is not None:
        try:
            rows = tuple(run_stress_test(model, example, loss_function, lr=lr))
            report = replace(report, stress=rows)
        except StressTestError as problem:  # keep the rest of the report
            report = replace(report, notes=(*report.notes, f"the stress test failed: {problem}"))
    return report


def _load_model(
    target: str, depth: int | None, options: dict[str, Any] | None
) -> tuple[Any, list[str]]:
    from addnorm.core.errors import UserError
    from addnorm.doctor.loading.targets import build_target

    if not target or not Path(target).is_dir():
        return build_target(target, depth=depth, options=options)
    if depth is not None or options is not None:
        raise UserError(
            f"--depth and --config do not apply to the run folder {target}, whose model is already "
            "configured; omit them"
        )
    from addnorm.cli.line_io import open_run
    from addnorm.tabular.io.store import FILE

    if (Path(target) / FILE).is_file():
        raise UserError(
            f"expected a run folder of addnorm train, got the saved estimator {target}; pass "
            "package.module:callable that returns its module"
        )
    return open_run(Path(target), "cpu").model, []


def _render_report(report: "Report", console: "Console") -> "list[RenderableType]":
    from rich.text import Text

    parts: list[RenderableType] = [Text(report.model, style="bold")]
    parts += [Text(f"  {line}") for line in report.stacks] or [Text("  no residual adds found")]
    if report.blocks:
        parts.append(Text(f"  closest arrangement: {report.closest()}"))
        if len(report.fits) > 1:
            parts.append(Text(f"  equally close: {', '.join(report.fits[1:])}"))
    parts += [Text(f"  outlier: {line}") for line in report.odd]
    parts += [Text(f"  note: {line}") for line in report.notes]
    for table in _blocks(report, console) if report.blocks else ():
        parts += [Text(""), table]
    parts += [Text(""), _metrics_table(report)] if report.stream_statistics() else []
    parts.append(Text(""))
    parts += _findings(report)
    if report.stress:
        parts += [Text(""), *_stress(report)]
    return parts


def _make_table(titles: "Sequence[str]", *, wrapped: "Sequence[str]" = ()) -> "Table":
    """Return a table whose columns do not wrap, except those named in `wrapped`."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for title in titles:
        no_wrap = title not in wrapped
        table.add_column(title, overflow="fold", no_wrap=no_wrap, min_width=len(title))
    return table


def _add_number_columns(table: "Table", names: "Sequence[str]") -> None:
    for name in names:
        name = name.replace("_", " ")
        longest = max(map(len, name.split()))
        table.add_column(name, justify="right", min_width=max(longest, 8))


def _blocks(report: "Report", console: "Console") -> "Iterator[Table]":
    """Yield one table of labels and measurements, or one of each if the console is too narrow."""
    from addnorm.cli.output import UNLIMITED_WIDTH

    metrics = ("dependency", "stream_variance", "gradient_norm", "token_similarity")
    titles = ("", "add", "branch", "kind", "wiring", "tags")
    long = ("add", "branch", "tags")
    combined, labels, measured = (_make_table(t, wrapped=long) for t in (titles, titles, ("",)))
    _add_number_columns(combined, metrics)
    _add_number_columns(measured, metrics)
    for block in report.blocks:
        names = (
            str(block.index), block.path or "-", block.branch or "-", " + ".join(block.branches),
            block.wiring, " ".join(block.tags),
        )  # fmt: skip
        values = [block.measurements.get(metric) for metric in metrics]
        numbers = ["" if n is None else f"{n:.3g}" for n in values]
        combined.add_row(*names, *numbers)
        labels.add_row(*names)
        measured.add_row(str(block.index), *numbers)
    unlimited = console.options.update(width=UNLIMITED_WIDTH)
    fits = console.measure(combined, options=unlimited).maximum <= console.width
    yield from (combined,) if fits else (labels, measured)


def _findings(report: "Report") -> "list[RenderableType]":
    from rich.text import Text

    if not report.findings:
        return [Text("no findings")]
    lines: list[RenderableType] = []
    styles = {"error": "bold red", "warning": "yellow", "info": "cyan"}
    for finding in report.findings:
        where = f" at {finding.path}" if finding.path else ""
        lines.append(
            Text.assemble(
                (finding.severity, styles[finding.severity]),
                f" {finding.rule}{where}: ",
                finding.message,
            )
        )
        if finding.evidence:
            lines.append(Text(f"  evidence: {finding.evidence_text()}"))
    return lines


def _metrics_table(report: "Report") -> "RenderableType":
    table = _make_table(("location", "metric"), wrapped=("location",))
    _add_number_columns(table, ("value",))
    for location, name, value in report.stream_statistics():
        table.add_row(location, name, f"{value:.3g}")
    return table


def _stress(report: "Report") -> "Iterator[RenderableType]":
    from rich.text import Text

    head, rows = report.stress_table()
    table = _make_table(())
    for name in head:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    yield table
    yield from map(Text, report.sensitivities())
