"""Generated tables of README.md: commands, registries and verdicts of claims."""

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


def count_table() -> str:
    """Return the table of the number of members of each registry, with links to their pages."""
    pages = {
        "wirings": "index.md#wirings",
        "norms": "index.md#norms",
        "presets": "presets.md",
        "scales": "scales.md",
        "schedules": "schedules.md",
        "optimizers": "optimizers.md",
        "positions": "positions.md",
        "qk_norms": "positions.md#query-key-norms",
    }
    rows = [
        (f"[{family.replace('_', ' ')}](docs/catalogue/{page})", str(len(get_registry(family))))
        for family, page in pages.items()
    ]
    return markdown_table(("family", "members"), rows)


def verdict_table() -> str:
    """Return the table of the number of claims with each verdict."""
    results = read_results(CLAIMS)
    counts = Counter(result.verdict.answer for result in results.values() if result.verdict)
    rows = [(verdict, str(counts[verdict])) for verdict in ("held", "not held", "undecided")]
    if waiting := len(get_registry("claims")) - counts.total():
        rows.append(("not run yet", str(waiting)))
    return markdown_table(("verdict", "claims"), rows)


README_TABLES: dict[str, Callable[[], str]] = {
    "commands": command_table,
    "counts": count_table,
    "verdicts": verdict_table,
}


def fill_tables(text: str) -> str:
    """Return the text with every generated table replaced by its current content."""
    return re.sub(
        r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}\n{README_TABLES[match[2]]()}\n\n{match[3]}",
        text,
        flags=re.DOTALL,
    )
