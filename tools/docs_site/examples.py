"""Pages of the example scripts."""

import ast
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def example_pages() -> dict[str, str]:
    """Return one page per script: its docstring, its code and, if recorded, its output."""
    return {f"examples/{path.stem}.md": example_page(path) for path in EXAMPLES.glob("*.py")}


def example_page(path: Path) -> str:
    """Return the page of a script."""
    source = path.read_text(encoding="utf-8")
    summary, _, details = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    parts = [f"# {summary.rstrip('.')}"]
    for paragraph in filter(None, details.split("\n\n")):
        is_command = paragraph.startswith(("addnorm ", "python "))
        parts.append(f"```sh\n{paragraph}\n```" if is_command else paragraph)
    parts.append(f"`examples/{path.name}`:")
    parts.append(f"```python\n{source.rstrip()}\n```")
    output = path.with_suffix(".out")
    if output.exists():
        parts += ["It prints:", f"```text\n{output.read_text(encoding='utf-8').rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"
