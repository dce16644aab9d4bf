"""The generated parts of README.md: run by `make docs`, kept true by tests/test_house.py.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from typer import Typer

from addnorm.cli.main import COMMANDS
from addnorm.cli.registries import get_registry

README = Path(__file__).parent.parent / "README.md"


def members(family: str) -> str:
    """The table of a family: name, title, formula, paper."""
    lines = ["| name | title | formula | paper |", "|---|---|---|---|"]
    for card in get_registry(family).cards():
        cells = (f"`{card.name}`", card.title, f"`{card.formula}`", card.paper)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines)


def commands() -> str:
    """The table of commands: the first line of each one's own help."""
    lines = ["| command | what it does |", "|---|---|"]
    for verb, command in COMMANDS.items():
        group = isinstance(command, Typer)
        words = str(command.info.help) if group else inspect.getdoc(command) or ""
        lines.append(f"| `addnorm {verb}` | {words.splitlines()[0]} |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "norms": partial(members, "norms"),
    "wirings": partial(members, "wirings"),
    "presets": partial(members, "presets"),
    "commands": commands,
}


def filled(text: str) -> str:
    """The text with every generated part made anew."""
    return re.sub(
        r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)",
        lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n\n{part[3]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
