"""Standard output: pages wrapped for a terminal, unwrapped lines for a pipe, JSON for programs."""

import json
import sys
from typing import Any

from rich.console import Console, Group, RenderableType

UNLIMITED_WIDTH = 100_000
"""Width of the console without a terminal: nothing is wrapped or truncated."""


def make_console() -> Console:
    """Return a console for the terminal, or one with unlimited width and no color for a pipe."""
    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = UNLIMITED_WIDTH
    return console


def write_page(console: Console, *parts: RenderableType) -> None:
    """Render `parts` below each other and write them to standard output."""
    with console.capture() as capture:
        console.print(Group(*parts), soft_wrap=False)
    lines = (line.rstrip() for line in capture.get().splitlines())
    # Not written by rich, which exits on its own when the reader closes the pipe.
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def write_json(data: Any) -> None:
    """Write `data` to standard output as indented JSON."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
