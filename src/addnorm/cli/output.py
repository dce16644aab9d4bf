"""Standard output: pages that fit a terminal, whole lines for a pipe, JSON for programs."""

import json
import sys
from typing import Any

from rich.console import Console, Group, RenderableType

UNLIMITED_WIDTH = 100_000  # columns where there is no terminal: nothing is wrapped or cut


def make_console() -> Console:
    """What a page is laid out for: the terminal, or endless lines without colour for a pipe."""
    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = UNLIMITED_WIDTH
    return console


def write_page(console: Console, *parts: RenderableType) -> None:
    """Lay parts out below each other and write them to standard output."""
    with console.capture() as capture:
        console.print(Group(*parts), soft_wrap=False)
    lines = (line.rstrip() for line in capture.get().splitlines())
    # Not by rich itself, which ends the program in its own way when the reader has gone.
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def write_json(data: Any) -> None:
    """Write plain data as JSON."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
