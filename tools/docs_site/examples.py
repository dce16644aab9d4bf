"""Pages and notebooks of the example scripts."""

import ast
import json
import re
from pathlib import Path
from typing import Any

from tools.docs_site.example_cells import EXAMPLES, ExampleCell, list_examples, read_cells

NOTEBOOKS = "_static/notebooks"


def example_pages() -> dict[str, str]:
    """Return one page per script, with its code and what it prints, and the list of them."""
    tutorials = list_examples()
    pages = {f"examples/{name}.md": cells_page(name) for name in tutorials}
    others = [path for path in sorted(EXAMPLES.glob("*.py")) if path.stem not in tutorials]
    return pages | {f"examples/{path.stem}.md": script_page(path) for path in others}


def cells_page(name: str) -> str:
    """Return the page of an example that consists of cells."""
    title, *parts = [part for cell in read_cells(name) for part in cell_parts(cell)]
    heading, _, introduction = title.partition("\n\n")
    source = (
        f"Script: `examples/{name}.py`. "
        f'<a href="../{NOTEBOOKS}/{name}.ipynb" download>Download it as a notebook</a>.'
    )
    return "\n\n".join([heading, introduction, source, *parts]) + "\n"


def cell_parts(cell: ExampleCell) -> list[str]:
    """Return the Markdown of a cell: prose, or code and what it prints."""
    if not cell.is_code:
        return [re.sub(r"\]\((\w+)\.py\)", r"](\1.md)", cell.source.replace("](../docs/", "](../"))]
    code = [f"```python\n{cell.source}\n```"]
    return [*code, f"```text\n{cell.output.rstrip()}\n```"] if cell.output.strip() else code


def script_page(path: Path) -> str:
    """Return the page of an example that is one script: a task of `addnorm compare`."""
    source = path.read_text(encoding="utf-8")
    summary, _, details = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    parts = [f"# {summary.rstrip('.')}"]
    for paragraph in filter(None, details.split("\n\n")):
        is_command = paragraph.startswith(("addnorm ", "python "))
        parts.append(f"```sh\n{paragraph}\n```" if is_command else paragraph)
    parts += [f"`examples/{path.name}`:", f"```python\n{source.rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def notebook_files() -> dict[str, bytes]:
    """Return the notebook of each example that consists of cells, by its path in the site."""
    return {
        f"{NOTEBOOKS}/{name}.ipynb": json.dumps(make_notebook(read_cells(name)), indent=1).encode()
        for name in list_examples()
    }


def make_notebook(cells: list[ExampleCell]) -> dict[str, Any]:
    """Return cells and their outputs as a Jupyter notebook, format 4.5."""
    return {
        "cells": [notebook_cell(cell, f"cell-{number}") for number, cell in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def notebook_cell(cell: ExampleCell, identifier: str) -> dict[str, Any]:
    common = {"id": identifier, "metadata": {}, "source": cell.source.splitlines(keepends=True)}
    if not cell.is_code:
        return common | {"cell_type": "markdown"}
    lines = cell.output.splitlines(keepends=True)
    output = {"output_type": "stream", "name": "stdout", "text": lines}
    return common | {
        "cell_type": "code",
        "execution_count": None,
        "outputs": [output] if lines else [],
    }
