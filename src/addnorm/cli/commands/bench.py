"""`addnorm bench`: how fast this machine is with us, and with our peers."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from addnorm.bench import Bench, Limits, Row

PARTS = ("kernels", "train", "decode", "tabular", "doctor", "depth")


def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PART...", help=f"Of {', '.join(PARTS)}; all if left out."),
    ] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Threads, once or more often; one, and two if there are cores."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="How often the ways take turns.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The rows as a JSON list.")] = False,
) -> None:
    """Measure speed against peers, in ratios of one run."""
    from addnorm.bench import keep_memory, limits
    from addnorm.cli.output import page, write_json, write_page

    chosen, counts = _chosen(parts), threads or [1, 2][: os.cpu_count()]
    keep_memory()
    floor = [limits(count) for count in counts]
    rows = list(_rows(chosen, counts, rounds))
    if json:
        for line in _machine(floor):
            _say(line)
        write_json([row.data() for row in rows])
        return
    write_page(page(), *_told(floor, rows))


def _chosen(parts: "list[str] | None") -> list[str]:
    from addnorm.core.errors import UnknownName, unknown

    for part in parts or ():
        if part not in PARTS:
            raise UnknownName(unknown("part", part, PARTS))
    return list(dict.fromkeys(parts or PARTS))


def _rows(parts: list[str], threads: list[int], rounds: int | None) -> "Iterator[Row]":
    from addnorm.bench import measured
    from addnorm.core.errors import UserError

    for part in parts:
        for made in _benches(part):
            for count in threads:
                _say(f"{made.name}, {made.dtype}, {count} thread{'s' * (count > 1)}")
                try:
                    yield from measured(made, threads=count, rounds=rounds)
                except UserError as problem:  # a peer that is not there
                    _say(f"left out: {problem}")


def _say(words: str) -> None:
    print(f"addnorm: {words}", file=sys.stderr, flush=True)


def _benches(part: str) -> "Iterator[Bench]":
    from importlib import import_module

    benches: Iterator[Bench] = import_module(f"addnorm.bench.{part}").benches()
    return benches


def _told(floor: "list[Limits]", rows: "list[Row]") -> "Iterator[RenderableType]":
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
    yield from _machine(floor)


def _machine(floor: "list[Limits]") -> "Iterator[str]":
    from addnorm.kernels import library

    yield "The machine itself: " + "; ".join(map(str, floor))
    yield f"Kernels: {library.available().why}"
