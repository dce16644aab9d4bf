"""`addnorm doctor`: what is really wired in a model, and what is wrong with it."""

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
"""Learning rate of a stress run, if none is given."""
LEVELS = ("info", "warning", "error", "never")


def doctor(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="package.module:callable, file.py:callable, hf:FAMILY, hf:./config.json, or a run "
            "folder of ours.",
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="SPEC",
            help='Such as "ids:int64[2,128]<50257", once for each input; guessed if left out.',
        ),
    ] = None,
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, help="Layers of a Hugging Face family.")
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            metavar="CALLABLE",
            help="package.module:callable that makes an optimizer of the model; its weight decay "
            "is looked at.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="JSON or YAML of options: TARGET is called with them, and each is tried for an "
            "effect.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="All of it as one JSON object.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one page.")
    ] = None,
    fail_on: Annotated[
        str, typer.Option("--fail-on", help="Exit 1 from this on: info, warning, error, never.")
    ] = "warning",
    stress: Annotated[
        bool, typer.Option("--stress", help="Train copies for a few steps at three rates.")
    ] = False,
    lr: Annotated[
        float | None, typer.Option("--lr", help="Learning rate of the stress run [default: 1e-3].")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            "--loss",
            metavar="LOSS",
            help="package.module:callable that makes a scalar of the model's output; for --stress "
            "also cross_entropy, mse or own.",
        ),
    ] = None,
) -> None:
    """Find out what is really wired in any PyTorch model.

    Importing package.module runs its code: visit only what you trust. Nothing is downloaded and
    the model is left as it was. Exit 0 nothing found, 1 findings, 2 it could not run.
    """
    from addnorm.core.errors import UserError, unknown_name_message

    if fail_on not in LEVELS:
        raise UserError(unknown_name_message("level", fail_on, LEVELS))
    if lr is not None and not stress:
        raise UserError(f"--lr {lr:g} is for --stress; add it, or leave --lr out")
    with redirect_stdout(sys.stderr):  # what the user's own code prints is no part of the report
        report = _diagnose(
            target, inputs or [], layers=layers, optimizer=optimizer, config=config,
            lr=DEFAULT_STRESS_LR if stress and lr is None else lr, loss=loss,
        )  # fmt: skip
    if html is not None:
        from addnorm.report.doctor_page import write_doctor_page

        write_doctor_page(html, report)
        print(f"addnorm: wrote {html}", file=sys.stderr)
    if json:
        sys.stdout.write(report.to_json() + "\n")
    else:
        from addnorm.cli.output import make_console, write_page

        console = make_console()
        write_page(console, *_render_report(report, console))
    sys.stdout.flush()
    worst = report.worst()
    if fail_on != "never" and worst and LEVELS.index(worst) >= LEVELS.index(fail_on):
        raise typer.Exit(EXIT_FINDINGS)


def _diagnose(
    target: str,
    specs: list[str],
    *,
    layers: int | None,
    optimizer: str | None,
    config: Path | None,
    lr: float | None,
    loss: str | None,
) -> "Report":
    from dataclasses import replace

    from addnorm.doctor import doctor as visit
    from addnorm.doctor.loading.example_inputs import guess_inputs, parse_input_specs
    from addnorm.doctor.loading.targets import (
        build_optimizer,
        import_target,
        load_loss,
        read_options,
    )
    from addnorm.doctor.stress_test import StressTestError
    from addnorm.doctor.stress_test import stress as stressed

    scalar = None if loss is None else load_loss(loss, stress=lr is not None)
    given = parse_input_specs(specs) if specs else None
    options = None if config is None else read_options(config)
    model, notes = _load_model(target, layers, options)
    for note in notes:
        print(f"addnorm: {note}", file=sys.stderr)
    example = guess_inputs(model) if given is None else given
    more: dict[str, Any] = {}
    if optimizer is not None:
        more["optimizer"] = build_optimizer(optimizer, model)
    if options is not None:
        more |= {"config": options, "build": import_target(target, "")}
    report = visit(model, example, None if isinstance(scalar, str) else scalar, **more)
    if lr is not None:
        try:
            report = replace(report, stress=tuple(stressed(model, example, scalar, lr=lr)))
        except StressTestError as problem:  # what the visit found is not lost with it
            report = replace(report, notes=(*report.notes, f"no stress run: {problem}"))
    return report


def _load_model(
    target: str, layers: int | None, options: dict[str, Any] | None
) -> tuple[Any, list[str]]:
    from addnorm.core.errors import UserError
    from addnorm.doctor.loading.targets import build_target

    if not target or not Path(target).is_dir():
        return build_target(target, layers=layers, options=options)
    if layers is not None or options is not None:
        raise UserError(f"{target} is a run folder, whose model is built; leave --layers and "
                        "--config out")  # fmt: skip
    from addnorm.cli.line_io import open_run
    from addnorm.tabular.io.store import FILE

    if (Path(target) / FILE).is_file():
        raise UserError(f"{target} is a fit of a table; wanted a run of addnorm train, or "
                        "package.module:callable that returns the model of the fit")  # fmt: skip
    return open_run(Path(target), "cpu").model, []


def _render_report(report: "Report", console: "Console") -> "list[RenderableType]":
    from rich.text import Text

    parts: list[RenderableType] = [Text(report.model, style="bold")]
    parts += [Text(f"  {line}") for line in report.stacks] or [Text("  no residual adds found")]
    if report.blocks:
        parts.append(Text(f"  closest arrangement: {report.closest()}"))
        if len(report.fits) > 1:
            parts.append(Text(f"  as close, in one forward: {', '.join(report.fits[1:])}"))
    parts += [Text(f"  unlike the others: {line}") for line in report.odd]
    parts += [Text(f"  not seen: {line}") for line in report.notes]
    for table in _blocks(report, console) if report.blocks else ():
        parts += [Text(""), table]
    parts += [Text(""), _metrics_table(report)] if report.stream_statistics() else []
    parts.append(Text(""))
    parts += _findings(report)
    if report.stress:
        parts += [Text(""), *_stress(report)]
    return parts


def _make_table(titles: "Sequence[str]", *, wrapped: "Sequence[str]" = ()) -> "Table":
    """A table whose columns keep their words whole, but for those that may be long."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for word in titles:
        whole = word not in wrapped
        table.add_column(word, overflow="fold", no_wrap=whole, min_width=len(word))
    return table


def _add_number_columns(table: "Table", names: "Sequence[str]") -> None:
    for name in names:
        name = name.replace("_", " ")
        longest = max(map(len, name.split()))
        table.add_column(name, justify="right", min_width=max(longest, 8))


def _blocks(report: "Report", console: "Console") -> "Iterator[Table]":
    """One table of words and numbers; one of each where that would be too wide."""
    from addnorm.cli.output import UNLIMITED_WIDTH

    signs = ("dependency", "stream_variance", "gradient_norm", "token_similarity")
    words = ("", "add", "branch", "kind", "wiring", "tags")
    long = ("add", "branch", "tags")
    whole, said, measured = (_make_table(w, wrapped=long) for w in (words, words, ("",)))
    _add_number_columns(whole, signs)
    _add_number_columns(measured, signs)
    for block in report.blocks:
        names = (
            str(block.index), block.path or "-", block.branch or "-", block.kind, block.wiring,
            " ".join(block.tags),
        )  # fmt: skip
        seen = [block.measurements.get(sign) for sign in signs]
        numbers = ["" if n is None else f"{n:.3g}" for n in seen]
        whole.add_row(*names, *numbers)
        said.add_row(*names)
        measured.add_row(str(block.index), *numbers)
    endless = console.options.update(width=UNLIMITED_WIDTH)
    fits = console.measure(whole, options=endless).maximum <= console.width
    yield from (whole,) if fits else (said, measured)


def _findings(report: "Report") -> "list[RenderableType]":
    from rich.text import Text

    if not report.findings:
        return [Text("nothing found")]
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
            lines.append(Text(f"  seen: {finding.evidence_text()}"))
    return lines


def _metrics_table(report: "Report") -> "RenderableType":
    table = _make_table(("where", "sign"), wrapped=("where",))
    _add_number_columns(table, ("value",))
    for where, name, value in report.stream_statistics():
        table.add_row(where, name, f"{value:.3g}")
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
