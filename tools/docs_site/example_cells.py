"""Cells of the example scripts, and what each of them prints.

python -m tools.docs_site.example_cells NAME ...   run examples and store what they print

Examples are scripts with `# %%` marks, which editors and Jupyter read as cells. What their cells
print is stored in examples/outputs.json, and the tests compare it with a new run.
"""

import contextlib
import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
OUTPUTS = EXAMPLES / "outputs.json"
MARK = re.compile(r"^# %%( \[markdown\])?\n", flags=re.MULTILINE)


@dataclass(frozen=True)
class ExampleCell:
    """One cell: Markdown, or Python with the text that it prints."""

    source: str
    is_code: bool
    output: str = ""


def list_examples() -> list[str]:
    """Return the names of the scripts that consist of cells, in alphabetical order."""
    paths = sorted(EXAMPLES.glob("*.py"))
    return [path.stem for path in paths if path.read_text("utf-8").startswith("# %%")]


def read_cells(name: str) -> list[ExampleCell]:
    """Return the cells of an example with their stored outputs."""
    cells = split_cells((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    outputs = iter(read_outputs().get(name, []))
    return [
        ExampleCell(cell.source, True, next(outputs, "")) if cell.is_code else cell
        for cell in cells
    ]


def split_cells(script: str) -> list[ExampleCell]:
    r"""Return the cells of a script, without outputs.

    >>> cells = split_cells("# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nprint(1)\n")
    >>> [(cell.source, cell.is_code) for cell in cells]
    [('# Title\n\nText.', False), ('print(1)', True)]
    """
    _, *parts = MARK.split(script)
    cells = []
    for kind, source in zip(parts[::2], parts[1::2], strict=True):
        if kind:
            source = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
        cells.append(ExampleCell(source.strip("\n"), is_code=not kind))
    return cells


def read_outputs() -> dict[str, list[str]]:
    """Return the stored outputs: for each example the texts of its code cells."""
    return json.loads(OUTPUTS.read_text(encoding="utf-8")) if OUTPUTS.exists() else {}


def run_cells(name: str) -> list[str]:
    """Run the code cells of an example in one namespace; return what each prints."""
    path = EXAMPLES / f"{name}.py"
    script = path.read_text(encoding="utf-8")
    namespace = {"__name__": "__main__", "__file__": str(path)}
    outputs, above = [], 0
    for cell in split_cells(script):
        if not cell.is_code:
            continue
        above = script.index(cell.source, above)  # so that tracebacks have the script's lines
        code = "\n" * script.count("\n", 0, above) + cell.source
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, str(path), "exec"), namespace)
        outputs.append(printed.getvalue())
    return outputs


def store_outputs(names: list[str]) -> None:
    """Run examples and store what they print; outputs of the others stay."""
    for name in names:
        stored = read_outputs() | {name: run_cells(name)}
        known = {each: stored[each] for each in list_examples() if each in stored}
        OUTPUTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    store_outputs(sys.argv[1:] or list_examples())
