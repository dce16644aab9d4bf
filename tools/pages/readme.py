"""Generated parts of README.md: commands, and numbers of members and verdicts."""

import inspect
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from typer import Typer

from addnorm.claims.result import read_results
from addnorm.cli.main import COMMANDS
from addnorm.cli.registries import get_registry
from tools.pages.markdown import first_paragraph, markdown_table

CLAIMS = Path(__file__).parents[2] / "docs" / "claims"


def command_table() -> str:
    """Return the table of commands with the first line of each one's help."""
    rows = []
    for verb, command in COMMANDS.items():
        text = str(command.info.help) if isinstance(command, Typer) else inspect.getdoc(command)
        rows.append((f"`addnorm {verb}`", first_paragraph(text)))
    return markdown_table(("command", "what it does"), rows)


def count_members() -> str:
    """Return the number of wirings and norms, in words."""
    return (
        f"{len(get_registry('wirings'))} published wirings and {len(get_registry('norms'))} norms"
    )


def count_verdicts() -> str:
    """Return the number of claims with each verdict, in words."""
    results = read_results(CLAIMS)
    counts = Counter(result.verdict.answer for result in results.values() if result.verdict)
    text = (
        f"{counts['held']} held, {counts['not held']} did not, {counts['undecided']} are undecided"
    )
    waiting = len(get_registry("claims")) - counts.total()
    return f"{text}, {waiting} not run" if waiting else text


README_PARTS: dict[str, Callable[[], str]] = {
    "commands": lambda: f"\n\n{command_table()}\n\n",
    "counts": count_members,
    "verdicts": count_verdicts,
}


def fill_parts(text: str) -> str:
    """Return the text with every generated part replaced by its current content."""
    return re.sub(
        r"(<!-- generated: (\w+) -->).*?(<!-- end -->)",
        lambda match: f"{match[1]}{README_PARTS[match[2]]()}{match[3]}",
        text,
        flags=re.DOTALL,
    )
