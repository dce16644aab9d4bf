"""`addnorm bench`: measure speed against torch and other libraries."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from addnorm.bench import Benchmark, HardwareLimits, Row

PARTS = ("kernels", "train", "decode", "tabular", "export", "doctor", "monitor", "depth")


def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PART", help=f"Parts to run: {', '.join(PARTS)}; default: all"),
    ] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(
            min=1, metavar="N", help="Number of threads; repeat for several; default: 1 and 2"
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Measurements per candidate; default: that of each benchmark"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the rows as a JSON list")] = False,
) -> None:
    """Measure speed ratios against PyTorch and other libraries."""
    from addnorm.bench import measure_limits, retain_freed_memory
    from addnorm.cli.output import make_console, write_json, write_page

    selected, counts = _select_parts(parts), threads or [1, 2][: os.cpu_count()]
    retain_freed_memory()
    limits = [measure_limits(count) for count in counts]
    rows = list(_measure_rows(selected, counts, rounds))
    if json:
        for line in _describe_machine(limits):
            _print_status(line)
        write_json([row.to_dict() for row in rows])
        return
    write_page(make_console(), *_render_results(limits, rows))


def _select_parts(parts: "list[str] | None") -> list[str]:
    from addnorm.core.errors import UnknownNameError, unknown_name_message

    for part in parts or ():
        if part not in PARTS:
            raise UnknownNameError(unknown_name_message("part", part, PARTS))
    return list(dict.fromkeys(parts or PARTS))


def _measure_rows(parts: list[str], threads: list[int], rounds: int | None) -> "Iterator[Row]":
    from addnorm.bench import run_benchmark
    from addnorm.core.errors import UserError

    for part in parts:
        for benchmark in _load_benches(part):
            for count in threads:
                _print_status(
                    f"{benchmark.name}, {benchmark.dtype}, {count} thread{'s' * (count > 1)}"
                )
                try:
                    yield from run_benchmark(benchmark, threads=count, rounds=rounds)
                except UserError as error:  # a peer that is not installed
                    _print_status(f"skipped {benchmark.name}: {error}")


def _print_status(text: str) -> None:
    print(f"addnorm: {text}", file=sys.stderr, flush=True)


def _load_benches(part: str) -> "Iterator[Benchmark]":
    """Return the benchmarks of a part; the imports are late because they load torch and peers."""
    from addnorm.bench import decode, depth, doctor, export, kernels, monitor, tabular, train

    modules = {
        "kernels": kernels,
        "train": train,
        "decode": decode,
        "tabular": tabular,
        "export": export,
        "doctor": doctor,
        "monitor": monitor,
        "depth": depth,
    }
    return modules[part].make_benchmarks()


def _render_results(
    hardware_limits: "list[HardwareLimits]", rows: "list[Row]"
) -> "Iterator[RenderableType]":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name in ("what", "against", "dtype"):
        table.add_column(name)
    for name in ("threads", "times as good", "goal"):
        table.add_column(name, justify="right")
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal:.3g}"
        ratio = f"{row.ratio:.2f} ({row.low:.2f} to {row.high:.2f})"
        table.add_row(row.name, row.peer, row.dtype, str(row.threads), ratio, goal)
    yield table
    yield ""
    yield from _describe_machine(hardware_limits)


def _describe_machine(hardware_limits: "list[HardwareLimits]") -> "Iterator[str]":
    from addnorm.kernels import library

    yield "Machine: " + "; ".join(map(str, hardware_limits))
    yield f"Kernels: {library.get_availability().reason}"
