"""Reference implementations on the pages of wirings and norms, cut from the tests."""

import ast
from functools import cache
from pathlib import Path

from addnorm.cli.registries import get_registry

TESTS = Path(__file__).parents[2] / "tests"
NOTES = {
    "wirings": "`x` is the input, `f` the list of sub-layers, `w` the wiring with its weights, and "
    "`per` the number of sub-layers in a layer",
    "norms": "the arguments are the input, the weights of the norm and its options",
}


def add_references(pages: dict[str, str]) -> None:
    """Append to every page of a wiring or norm the function that the tests compare it with."""
    for family, note in NOTES.items():
        sources = read_functions(family)
        for name in get_registry(family):
            if name in sources:
                pages[f"catalogue/{family}/{name}.md"] += (
                    "\n## Reference implementation\n\n"
                    f"The tests compare outputs and gradients with this function; {note}.\n\n"
                    f"```python\n{sources[name]}\n```\n"
                )


@cache
def read_functions(family: str) -> dict[str, str]:
    """Return the source of every function in the reference of a family."""
    text = (TESTS / family / "reference.py").read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_source_segment(text, node) or "" for node in nodes}
